/* One MoE layer, forward and backward, on the caller's arrays. */
#ifndef CHOIR_LAYER_H
#define CHOIR_LAYER_H

#include "choir/router.h"

CHOIR_C_BEGIN

typedef struct choir_layer choir_layer;

typedef struct choir_layer_options {
  size_t size;         /* sizeof this struct: set by INIT */
  int tokens;          /* n, at most, of one call */
  int d_model;         /* d */
  int d_hidden;        /* h of an expert: GELU between two products */
  int experts;         /* e */
  int sequence_length; /* for pools "sequence" and "position"; 0: one sequence */
  int causal;          /* outside training no token's experts depend on other tokens: by the weights' thresholds or,
                          where tokens choose, without capacity */
  const choir_config *config; /* its router; read by choir_layer_create only */
  const char *compute;        /* "fp32" (NULL too) or "bf16" */
  const char *backend;        /* "cpu" (NULL too) or "reference" */
  int threads;                /* 0: all */
  uint64_t seed; /* of jitter and of sampled second experts, which go on from one training call to the next */
} choir_layer_options;
#define CHOIR_LAYER_OPTIONS_INIT \
  { .size = sizeof(choir_layer_options), .compute = "fp32", .backend = "cpu" }
CHOIR_API void choir_layer_options_default(choir_layer_options *options, size_t size); /* the same, as a function */

/* Weights of the layer, all fp32 and row-major: router [d,e] (unused by hash, random and dense; of kmeans the
 * centroids), w1 and w2 [e,d,h]; thresholds [e] for a layer made `causal` whose experts choose, and the prices of
 * quantile_balanced and bias_balanced in every layer (NULL, unless `causal`: 0); else not read. The same struct carries
 * gradients, which accumulate (+=); thresholds have none. */
typedef struct choir_layer_weights {
  float *router, *w1, *w2;
  float *thresholds;
  int64_t reserved[4];
} choir_layer_weights;

/* Plans and allocates everything; forward and backward then allocate nothing (but once if a smaller n than `tokens`
 * takes more memory). Router options capacity_schedule and capacity_start have no effect: masks and steps, which they
 * go by, are known to the training of a model only. CHOIR_ERROR_ARGUMENT: sizes, or router options that do not go with
 * `tokens`; CHOIR_ERROR_UNSUPPORTED: bf16 if the CPU has none; CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_layer_create(const choir_layer_options *options, choir_layer **layer);
CHOIR_API void choir_layer_free(choir_layer *layer);

/* out [n,d] = MoE(x [n,d]) (no residual). tokens: [n] ids for `hash` and `random`, or NULL. valid: [n] nonzero where a
 * token takes part, or NULL; the output of the others is 0. `training` keeps what backward needs, and switches jitter
 * and sampling on. CHOIR_ERROR_ARGUMENT: also training with router.threshold_after or consistency_weight, which only
 * the training of a model has. */
CHOIR_API int choir_layer_forward(choir_layer *layer, const choir_layer_weights *weights, int n, const float *x,
                                  const int32_t *tokens, const uint8_t *valid, int training, float *out);

/* The backward of the last training forward, once, with the same weights and x: dx [n,d] is set, gradients accumulate.
 * The gradient is that of <dout, out> + aux_loss_weight * aux_loss + z_loss_weight * z_loss, whose values are in the
 * stats. CHOIR_ERROR_ARGUMENT if no training forward went before. */
CHOIR_API int choir_layer_backward(choir_layer *layer, const choir_layer_weights *weights, const float *x,
                                   const float *dout, float *dx, const choir_layer_weights *gradients);

/* Folds the cut-off scores of the last forward into thresholds [e], their running mean with router.decay (the prices of
 * bias_balanced move by its bias_rate). calls: how many went into it before; at 0 what it holds counts for nothing.
 * CHOIR_ERROR_NUMERIC: a token that took part has NaN or infinity in x or in its scores. Then the thresholds stay as
 * they were and the call does not count, as the optimizer's step, which such a batch skips. CHOIR_ERROR_ARGUMENT: the
 * router keeps no cut-offs, no forward went before, or it was a causal one. */
CHOIR_API int choir_layer_observe(choir_layer *layer, uint64_t calls, float *thresholds);

/* Statistics of the last forward; the caller frees them with choir_route_stats_clear. CHOIR_ERROR_ARGUMENT,
 * CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_layer_get_route_stats(const choir_layer *layer, choir_route_stats *stats);

/* Bytes that the layer holds. */
CHOIR_API size_t choir_layer_bytes(const choir_layer *layer);

CHOIR_C_END
#endif
