/* A model that is distributed over ranks: values that must be equal on all ranks, and unsupported calls. */
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/machine.h"
#include "choir/version.h"
#include "comm/collective.h"
#include "handle/model.h"
#include "model/config.h"
#include "model/prefetch.h"

/* Hashes the replicated weights in blocks, since they may be in device memory. */
static uint64_t hash_weights(const choir_model *model) {
  enum { PIECE = 1 << 12 };
  const ch_params *params = &model->net.params;
  real piece[PIECE];
  uint64_t hash = 0;
  for (int i = 0; i < params->count + params->buffers; i++) {
    const ch_param *p = &params->p[i];
    for (int64_t at = 0; !p->expert && p->owner < 0 && at < p->count; at += PIECE) {
      size_t bytes = (size_t)(p->count - at < PIECE ? p->count - at : PIECE) * sizeof(real);
      model->x.memory->download(piece, p->w + at, bytes);
      hash = XXH64(piece, bytes, hash);
    }
  }
  return hash;
}

int ch_model_same(const choir_model *model) {
  const ch_exec *x = &model->x;
  if (x->comm->size == 1) return CHOIR_OK;
  const ch_fact facts[] = {{"version of choir", XXH64(choir_version(), strlen(choir_version()), 0)},
                           {"config", ch_config_hash(&model->config)},
                           {"compute type", (uint64_t)x->compute},
                           {"backend", XXH64(x->ops->name, strlen(x->ops->name), 0)},
                           {"instruction set", (uint64_t)ch_machine_isa()},
                           {"number of replicas", (uint64_t)x->grid.dp_group.size},
                           {"number of hidden shards", (uint64_t)x->grid.tp_group.size},
                           {"number of gradient chunks", (uint64_t)model->grad_chunks},
                           {"sharding of dense matrices", (uint64_t)ch_params_dense_sharded(&model->net.params)},
                           {"set of weights", hash_weights(model)}}; /* replicated on all ranks */
  return CH_SAME(x->comm, facts);
}

int ch_model_alone(const choir_model *model, const char *what) {
  int ranks = model->x.comm->size;
  if (ranks == 1) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s is for a model of one process; %d processes share this one", what,
                  ranks);
}

/* Ranks split a batch into whole gradient chunks. */
int ch_model_check_ranks(const choir_model *model, int B) {
  int ranks = model->x.comm->size, grad_chunks = model->grad_chunks;
  const char *name = grad_chunks == model->config.train.grad_chunks ? "train.grad_chunks" : "shards";
  if (ranks == 1) return CHOIR_OK;
  if (grad_chunks % ranks)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "%s is %d, which %d processes cannot share evenly; set it to a multiple of %d (choir "
                    "eval, forward and stats: --shards), or start another number of processes",
                    name, grad_chunks, ranks, ranks);
  if (B % grad_chunks == 0) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT,
                  "a batch of %d sequences, which %d processes share by shards: there must be a multiple of "
                  "%s, %d",
                  B, ranks, name, grad_chunks);
}
