/* One MoE layer, forward and backward, on the caller's arrays. */
#ifndef CHOIR_LAYER_H
#define CHOIR_LAYER_H

#include "choir/router.h"

CHOIR_C_BEGIN

typedef struct choir_layer choir_layer;

typedef struct choir_layer_options {
  size_t size;         /* sizeof this struct: set by INIT */
  int tokens;          /* max n, tokens per call */
  int d_model;         /* d */
  int d_hidden;        /* h, hidden width of an expert: GELU(x W1) W2^T */
  int experts;         /* e */
  int sequence_length; /* for pools "sequence" and "position"; 0: one sequence */
  int causal; /* nonzero: outside training, routing depends on no other token: threshold routing if experts choose, no
                 capacity if tokens choose */
  const choir_config *config; /* the router's settings; read by choir_layer_create only */
  const char *compute;        /* "fp32" (NULL too) or "bf16" */
  const char *backend;        /* "cpu" (NULL too) or "reference" */
  int threads;                /* 0: all */
  uint64_t seed; /* seed of jitter and of sampled second experts; training calls continue the random sequence */
} choir_layer_options;
#define CHOIR_LAYER_OPTIONS_INIT \
  { .size = sizeof(choir_layer_options), .compute = "fp32", .backend = "cpu" }
CHOIR_API void choir_layer_options_default(choir_layer_options *options, size_t size); /* the same, as a function */

/* Weights of the layer, all fp32 and row-major: router [d,e] (not used by hash, random and dense; the centroids of
 * kmeans), w1 and w2 [e,d,h]; thresholds [e]: read by `causal` layers whose experts choose, and by quantile_balanced
 * and bias_balanced, whose biases they are (NULL means 0 unless `causal` is set). The same struct is used for
 * gradients, which accumulate (+=); thresholds have no gradient. */
typedef struct choir_layer_weights {
  float *router, *w1, *w2;
  float *thresholds;
  int64_t reserved[4];
} choir_layer_weights;

/* Plans and allocates all memory; forward and backward allocate nothing (except once, if an n below `tokens` needs more
 * memory). Router options capacity_schedule and capacity_start have no effect: they depend on masks and training steps,
 * which a single layer does not have. CHOIR_ERROR_ARGUMENT: sizes, or router options that are impossible with `tokens`;
 * CHOIR_ERROR_UNSUPPORTED: bf16 if the CPU has none; CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_layer_create(const choir_layer_options *options, choir_layer **layer);
CHOIR_API void choir_layer_free(choir_layer *layer);

/* out [n,d] = MoE(x [n,d]) (no residual). tokens: [n] ids for `hash` and `random`, or NULL. valid: [n] 0 for padding,
 * or NULL; the output of padding is 0. If `training` is set, the call saves activations for backward, and uses jitter
 * and sampling. CHOIR_ERROR_ARGUMENT: also `training` with router.threshold_after or consistency_weight, which require
 * the training of a whole model. */
CHOIR_API int choir_layer_forward(choir_layer *layer, const choir_layer_weights *weights, int n, const float *x,
                                  const int32_t *tokens, const uint8_t *valid, int training, float *out);

/* Backward of the last training forward; call it once per forward, with the same weights and x. dx [n,d] is set, weight
 * gradients accumulate. Both are gradients of <dout, out> + aux_loss_weight * aux_loss + z_loss_weight * z_loss; the
 * statistics contain both losses. CHOIR_ERROR_ARGUMENT: there was no training forward. */
CHOIR_API int choir_layer_backward(choir_layer *layer, const choir_layer_weights *weights, const float *x,
                                   const float *dout, float *dx, const choir_layer_weights *gradients);

/* Updates thresholds [e] with the cut-off scores of the last forward: a running mean with router.decay; for
 * bias_balanced, the biases, by steps of bias_rate. calls: number of updates so far; at 0 the old values are ignored.
 * CHOIR_ERROR_NUMERIC: a token has NaN or infinity in x or in its scores; the thresholds do not change, and the call
 * must not be counted in `calls`. CHOIR_ERROR_ARGUMENT: the router has no cut-offs, or there was no forward, or the
 * last forward was causal. */
CHOIR_API int choir_layer_observe(choir_layer *layer, uint64_t calls, float *thresholds);

/* Statistics of the last forward; the caller frees them with choir_route_stats_clear. CHOIR_ERROR_ARGUMENT,
 * CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_layer_get_route_stats(const choir_layer *layer, choir_route_stats *stats);

/* Bytes of memory of the layer. */
CHOIR_API size_t choir_layer_bytes(const choir_layer *layer);

CHOIR_C_END
#endif
