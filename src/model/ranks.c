#include "model/ranks.h"

#include "comm/collective.h"
#include "model/block.h"

ch_pass ch_ranks_share(const ch_exec *x, const ch_transformer *m, const ch_pass *p) {
  ch_pass own = *p;
  own.B = (int)ch_own_count(x->comm, p->B);
  own.shards = (int)ch_own_count(x->comm, ch_pass_shards(p));
  int64_t sequence = ch_own_first(x->comm, own.B), token = sequence * own.T;
  if (p->length) own.length += sequence;
  if (p->target) own.target += token;
  if (p->row_weight) own.row_weight += token;
  if (p->token_loss) own.token_loss += token;
  if (p->logits) own.logits += token * m->config.vocab_size;
  own.shard_loss += ch_own_first(x->comm, own.shards);
  return own;
}

void ch_ranks_gather_losses(ch_exec *x, const ch_pass *p) {
  if (x->comm->size == 1) return;
  CH_SCRATCH(x);
  int shards = ch_pass_shards(p);
  ch_gather_shares(x, x->comm, "losses of shards", p->shard_loss, shards, sizeof *p->shard_loss);
  const double *loss = ch_get(x, p->shard_loss, (size_t)shards * sizeof *loss);
  if (ch_counting(x)) return;
  const double sum = ch_add_shards(shards, loss);
  x->memory->put(p->sums + CH_PASS_GUARD, &sum, sizeof sum);
  if (p->token_loss)
    ch_comm_gather_shares(x->comm, "losses of tokens", p->token_loss, (int64_t)p->B * p->T, sizeof *p->token_loss);
}

void ch_ranks_sum_experts(ch_exec *x, const ch_layer *b) {
  const ch_comm *dp_group = &x->grid.dp_group;
  enum { MOST = 3 };
  const ch_param *tensor[MOST] = {b->w1, b->w2, b->w3};
  const int tensors = b->w3 ? MOST : MOST - 1;
  real *gradient[MOST];
  ch_comm_array array[MOST];
  for (int i = 0; i < tensors; i++) {
    int64_t most = ch_largest_share(&x->grid.ep_group, tensor[i]->shape[0]);
    gradient[i] = CH_EITHER_SIDE(tensor[i]->g);
    array[i] = (ch_comm_array){
        .piece = &gradient[i], .count = tensor[i]->count, .most = most * tensor[i]->shape[1] * tensor[i]->part.columns};
  }
  ch_comm_sum_in(&ch_host(x)->scratch, dp_group, "gradients of experts", dp_group->size, array, tensors);
}
