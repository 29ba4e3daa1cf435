/* Models: initialise, load, run, differentiate, save. */
#ifndef CHOIR_MODEL_H
#define CHOIR_MODEL_H

#include "choir/config.h"
#include "choir/ranks.h"
#include "choir/router.h"
#include "choir/routing.h"
#include "choir/tokenizer.h"

CHOIR_C_BEGIN

typedef struct choir_model choir_model;

/* How a model runs: compute type, backend, ranks. */
typedef struct choir_model_options {
  size_t size;         /* sizeof this struct: set by INIT */
  const char *compute; /* "fp32", "bf16", "q8_0" (inference only: 8-bit weights), or NULL: the config's */
  const char *backend; /* "cpu" (NULL too), "reference" */
  int emulate_bf16;    /* emulate bf16 by fp32 if the CPU has no bf16 instructions */
  int threads;         /* 0: all */
  int unchecked; /* nonzero: for inspection, accept weights that are not finite, and a config.json or tokenizer.model
                    that differs from the file saved with the weights */
  const choir_ranks *ranks; /* the ranks that share the model (choir/ranks.h); NULL: this process alone */
  int64_t shards; /* number of gradient chunks per batch for a loaded checkpoint; must be a multiple of the number of
                     processes; 0: train.grad_chunks of the config. Training always uses train.grad_chunks */
} choir_model_options;
#define CHOIR_MODEL_OPTIONS_INIT \
  { .size = sizeof(choir_model_options), .backend = "cpu" }
CHOIR_API void choir_model_options_default(choir_model_options *options, size_t size); /* the same, as a function */

/* Creates a model with random weights from `seed`, the same on every machine: embedding N(0,1), matrices N(0,1/fan_in),
 * rel_bias N(0,0.1^2), norms 1. options NULL: the defaults. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_UNSUPPORTED,
 * CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_model_create(const choir_config *config, uint64_t seed, const choir_model_options *options,
                                 choir_model **model);

/* Loads a checkpoint directory: config.json, model.safetensors and, unless `tokenizer` is NULL, tokenizer.model, all of
 * the same checkpoint. Checks the checksum, every tensor's name, type, shape and values, and that config.json and
 * tokenizer.model are the files saved with the weights; missing or extra tensors are errors. For a run directory, loads
 * its best checkpoint, or else the newest readable one: damaged checkpoints are skipped, each with a line in
 * choir_notices. If a checkpoint disappears meanwhile (a run removes old checkpoints), the search starts again.
 * CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT, CHOIR_ERROR_NUMERIC (a value that is not finite), and as choir_model_create.
 * Collective over ranks: the first rank chooses the checkpoint, each rank loads its local experts, and
 * CHOIR_ERROR_ARGUMENT names a rank whose build or files differ. choir_eval, choir_model_forward and
 * choir_model_get_parameter are then collective as well; generating with, training or saving such a model is
 * CHOIR_ERROR_UNSUPPORTED (choir_train has its own options). */
CHOIR_API int choir_model_load(const char *path, const choir_model_options *options, choir_model **model,
                               choir_tokenizer **tokenizer);
CHOIR_API void choir_model_free(choir_model *model);

/* Writes to out [room] the checkpoint directory of a path: the path itself, or, for a run directory, its best
 * checkpoint (named by RUN/best), else its newest one. No file of the checkpoint is read. 4096 bytes are always enough.
 * CHOIR_ERROR_IO: no checkpoint; CHOIR_ERROR_ARGUMENT: `room` is too small. */
CHOIR_API int choir_checkpoint_find(const char *path, char *out, size_t room);

/* Writes a checkpoint directory atomically (staged, then renamed). tokenizer may be NULL. CHOIR_ERROR_IO: also if a
 * directory of that name exists and is not empty. */
CHOIR_API int choir_model_save(const choir_model *model, const choir_tokenizer *tokenizer, const char *checkpoint);

CHOIR_API const choir_config *choir_model_config(const choir_model *model);

/* Parameters by number, 0 <= index < count (else CHOIR_ERROR_ARGUMENT): name and shape as in the checkpoint. Pointers
 * are owned by the model and valid until the model is freed, `gradient` until a trainer of the model is freed. They are
 * NULL on devices, and for experts that are distributed over ranks. With bf16 compute, the model also has rounded
 * copies of `data`: to change values, call choir_model_set_parameter, which updates the copies. */
typedef struct choir_parameter {
  const char *name;
  int dims;
  int64_t shape[3];
  float *data;
  float *gradient; /* NULL before choir_model_forward computed gradients, and for router state */
  int trained;     /* 0: router state, without a gradient */
  int64_t reserved[4];
} choir_parameter;
CHOIR_API int choir_model_parameter_count(const choir_model *model);
CHOIR_API int choir_model_parameter_at(const choir_model *model, int index, choir_parameter *parameter);

/* get copies all values of a weight, or of its gradient if `gradient` is set (CHOIR_ERROR_ARGUMENT: no gradient), from
 * any backend; set replaces the values of a weight. */
CHOIR_API int choir_model_get_parameter(const choir_model *model, int index, int gradient, float *values);
CHOIR_API int choir_model_set_parameter(choir_model *model, int index, const float *values);

typedef struct choir_forward_result {
  double loss;     /* mean cross-entropy of position t predicting token t+1, over B*(T-1) positions */
  double aux_loss; /* weighted sum over layers; not included in `loss`, but in the gradients */
  double z_loss;   /* the routers' z-loss: weighted sum over layers, as aux_loss */
  int64_t reserved[7];
} choir_forward_result;

/* Sets the routing of the following passes. "batch", "sequence", "position", "group": the router's rule over that pool
 * of tokens; routers without pools have only "batch". "threshold": a token's experts depend on no other token; experts
 * that choose use the thresholds from training, tokens that choose have no capacity limit. NULL: the routing of the
 * config. CHOIR_ERROR_ARGUMENT: no such routing, or the router does not have it; CHOIR_ERROR_UNSUPPORTED: thresholds
 * that no training has set yet. */
CHOIR_API int choir_model_set_routing(choir_model *model, const char *routing);
CHOIR_API const char *choir_model_routing(const choir_model *model);

/* Returns the dependencies of a token's experts with the current routing; choir_model_looks_across_tokens returns 1 if
 * these include other tokens of the batch. A model without MoE layers has no dependencies. */
CHOIR_API int choir_model_get_routing_properties(const choir_model *model, choir_routing_properties *properties);
CHOIR_API int choir_model_looks_across_tokens(const choir_model *model);

/* Checks that the model can generate text with the current routing: the logits of a position must not depend on later
 * tokens or on other sequences. Otherwise CHOIR_ERROR_UNSUPPORTED, naming model.attention, or the router and
 * routing. */
CHOIR_API int choir_model_check_causal(const choir_model *model);

/* Forces the assignment of choir_model_forward on B sequences of T tokens, to replay a routing or to try another one.
 * Gates are the router's scores in this pass, with gradients. assignment [MoE layers,B*T,e]: 1 where the expert
 * processes the token, else 0; the array is owned by the caller, and each choir_model_forward reads it until another
 * array or NULL is set. There is no load-balancing loss and no capacity; other functions are not affected.
 * CHOIR_ERROR_ARGUMENT: an element other than 0 and 1, or (from choir_model_forward) other values of B and T.
 * CHOIR_ERROR_UNSUPPORTED: a router whose gates are not its scores, a model without MoE layers, several ranks. */
CHOIR_API int choir_model_force_routing(choir_model *model, int B, int T, const uint8_t *assignment);

/* tokens int32 [B,T]; all B*T positions form the routing pool, unless choir_model_set_routing says otherwise. logits:
 * float [B,T,V] or NULL, complete on every rank. gradients: nonzero also computes the gradients of loss + aux_loss +
 * z_loss (choir_model_parameter). The pass uses the evaluation capacity and no sampling, also with gradients. Routing
 * "threshold" has no gradients (CHOIR_ERROR_UNSUPPORTED). tokens may contain choir_config_mask_token if the model is
 * trained by masking; its loss is then NaN, and gradients are CHOIR_ERROR_UNSUPPORTED. The first call with new sizes
 * plans memory. CHOIR_ERROR_ARGUMENT: sizes, or a token outside the vocabulary; CHOIR_ERROR_MEMORY;
 * CHOIR_ERROR_NUMERIC: the loss is not finite; all outputs are written. */
CHOIR_API int choir_model_forward(choir_model *model, int B, int T, const int32_t *tokens, float *logits, int gradients,
                                  choir_forward_result *result);

/* Routing statistics of the last forward for the moe-th MoE layer (0-based); free with choir_route_stats_clear.
 * CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_model_moe_layer_count(const choir_model *model);
CHOIR_API int choir_model_get_route_stats(const choir_model *model, int moe, choir_route_stats *stats);

/* Sets a callback that is called with the routing of every MoE layer in every forward pass and evaluation, layer by
 * layer while the pass runs; NULL: no callback. The arrays are valid during the callback only. The callback may call
 * choir_model_on_routing; other functions of the model return CHOIR_ERROR_BUSY, as in the progress callbacks of
 * choir_eval and choir_score. With several ranks, set a callback on all ranks or on none. */
CHOIR_API void choir_model_on_routing(choir_model *model, choir_routing_callback callback, void *context);

CHOIR_C_END
#endif
