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
  int unchecked; /* accept weights that are not finite, for inspection, and a config.json or tokenizer.model other than
                    those that the weights were saved with */
  const choir_ranks *ranks; /* the ranks that share the model (choir/ranks.h); NULL: this process alone */
  int64_t shards; /* number of chunks that batches of a loaded checkpoint are split into; the number of processes must
                     divide it; 0: the config's train.grad_chunks. Training uses its config */
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
 * the same checkpoint. The checksum, every tensor's name, type, shape and values are checked, and that the other two
 * files are those that the weights were saved with; missing or surplus tensors are errors. A run directory means its
 * best checkpoint, or else the newest readable one: damaged checkpoints are skipped, each with a line in choir_notices;
 * if a checkpoint disappears meanwhile (a run removes old ones), the search starts again. CHOIR_ERROR_IO,
 * CHOIR_ERROR_FORMAT, CHOIR_ERROR_NUMERIC (a value that is not finite), and as choir_model_create. Collective over
 * ranks: the first rank chooses the checkpoint, each rank loads its local experts, and CHOIR_ERROR_ARGUMENT names a
 * rank with another build or other files. choir_eval, choir_model_forward and choir_model_get_parameter are then
 * collective as well; generating with, training or saving such a model is CHOIR_ERROR_UNSUPPORTED (choir_train has its
 * own options). */
CHOIR_API int choir_model_load(const char *path, const choir_model_options *options, choir_model **model,
                               choir_tokenizer **tokenizer);
CHOIR_API void choir_model_free(choir_model *model);

/* The checkpoint that a path means: itself, or of a run directory the best (RUN/best names it), else the newest.
 * None of its files is read. out has `room` bytes; 4096 are always enough. CHOIR_ERROR_IO: no checkpoint;
 * CHOIR_ERROR_ARGUMENT: `room` is too small. */
CHOIR_API int choir_checkpoint_find(const char *path, char *out, size_t room);

/* Writes a checkpoint directory atomically (staged, then renamed). tokenizer may be NULL. CHOIR_ERROR_IO: also if a
 * directory of that name exists and is not empty. */
CHOIR_API int choir_model_save(const choir_model *model, const choir_tokenizer *tokenizer, const char *checkpoint);

CHOIR_API const choir_config *choir_model_config(const choir_model *model);

/* Parameters by number, 0 <= index < count (else CHOIR_ERROR_ARGUMENT): name and shape as in the checkpoint. Pointers
 * belong to the model and are valid as long as it is, `gradient` until a trainer of the model is freed. They are NULL
 * if the backend's memory is not the host's, and for experts that are distributed over ranks. With bf16, passes also
 * read rounded copies of `data`: change values with choir_model_set_parameter, which updates the copies. */
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

/* Get copies all values of a weight, or of its gradient (CHOIR_ERROR_ARGUMENT: no gradient), from any backend; set
 * replaces the values of a weight. */
CHOIR_API int choir_model_get_parameter(const choir_model *model, int index, int gradient, float *values);
CHOIR_API int choir_model_set_parameter(choir_model *model, int index, const float *values);

typedef struct choir_forward_result {
  double loss;     /* mean cross-entropy of position t predicting t+1, over the B*(T-1) positions that have one */
  double aux_loss; /* weighted sum over layers; not in `loss`, but in the gradients */
  double z_loss;   /* the same of the routers' z-loss */
  int64_t reserved[7];
} choir_forward_result;

/* Which routing the passes from now on use. "batch" and the other pools ("sequence", "position", "group"): each expert
 * takes its best tokens of a pool; every router that has no pools has "batch" alone, its own rule. "threshold": no
 * token's experts depend on any other token: by the thresholds that training left or, if tokens choose, by their
 * choices without capacity. NULL: as the config says. CHOIR_ERROR_ARGUMENT: no such routing, or the router does not
 * have it; CHOIR_ERROR_UNSUPPORTED: thresholds that no training has set yet. */
CHOIR_API int choir_model_set_routing(choir_model *model, const char *routing);
CHOIR_API const char *choir_model_routing(const choir_model *model);

/* Describes what the experts of a token depend on with the present routing, and whether that includes other tokens of
 * the batch. A model without MoE layers depends on nothing. */
CHOIR_API int choir_model_get_routing_properties(const choir_model *model, choir_routing_properties *properties);
CHOIR_API int choir_model_looks_across_tokens(const choir_model *model);

/* Checks that the model can generate text with the present routing: the logits of a sequence must be the same alone, in
 * any batch, and truncated at any length. Otherwise CHOIR_ERROR_UNSUPPORTED, naming model.attention, or the router and
 * routing. */
CHOIR_API int choir_model_check_causal(const choir_model *model);

/* Forces the assignment of choir_model_forward on B sequences of T tokens, to replay a routing or to try another one.
 * The gates are the router's present scores, with their gradients. assignment [MoE layers,B*T,e]: 1 where the expert
 * processes the token, else 0; the array belongs to the caller, and is read by each call until another one or NULL is
 * set. There is no balancing loss and no capacity; other functions are not affected. CHOIR_ERROR_ARGUMENT: a value, or
 * (choir_model_forward) other sizes. CHOIR_ERROR_UNSUPPORTED: a router whose gates are not scores of its own, a model
 * without MoE layers, ranks. */
CHOIR_API int choir_model_force_routing(choir_model *model, int B, int T, const uint8_t *assignment);

/* tokens int32 [B,T]; all B*T positions form the routing pool, unless choir_model_set_routing says otherwise. logits:
 * float [B,T,V] or NULL, whole on every rank. gradients: nonzero computes them (read by choir_model_parameter), of loss
 * + aux_loss + z_loss. Capacity is that of evaluation and nothing is sampled, with gradients too; "threshold" has none
 * (CHOIR_ERROR_UNSUPPORTED). A model that is trained by masking takes choir_config_mask_token among the tokens; its
 * loss is NaN, and gradients are CHOIR_ERROR_UNSUPPORTED. The first call of a size plans memory. CHOIR_ERROR_ARGUMENT:
 * sizes, or a token outside the vocabulary; CHOIR_ERROR_MEMORY; CHOIR_ERROR_NUMERIC, with everything written, when the
 * loss is not finite. */
CHOIR_API int choir_model_forward(choir_model *model, int B, int T, const int32_t *tokens, float *logits, int gradients,
                                  choir_forward_result *result);

/* Routing statistics of the last forward for the moe-th MoE layer (0-based); free with choir_route_stats_clear.
 * CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_model_moe_layer_count(const choir_model *model);
CHOIR_API int choir_model_get_route_stats(const choir_model *model, int moe, choir_route_stats *stats);

/* Sets a callback that is called with the routing of every MoE layer in every forward pass and evaluation, layer by
 * layer while the pass runs; NULL: none, at no cost. The arrays are valid during the call only, within which the
 * callback may be replaced. Any other use of the model from the callback is CHOIR_ERROR_BUSY, as in the progress
 * callback of choir_eval and of scores. On several ranks, all set a callback or none. */
CHOIR_API void choir_model_on_routing(choir_model *model, choir_routing_callback callback, void *context);

CHOIR_C_END
#endif
