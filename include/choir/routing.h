/* What one MoE layer's router did, token by token, and statistics of it. */
#ifndef CHOIR_ROUTING_H
#define CHOIR_ROUTING_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One layer's routing of one batch: see choir_model_on_routing. A slot is one token at one expert. */
typedef struct choir_routing {
  int layer;               /* its number in the model, from 0 */
  int moe;                 /* its number among the MoE layers, from 0 */
  int tokens, experts;     /* n, padding included; e */
  const int32_t *token;    /* [n] ids, or NULL */
  const uint8_t *valid;    /* [n] 0: padding, which takes no part; NULL: every token does */
  const int *expert_begin; /* [e+1] slots of expert i are expert_begin[i] .. expert_begin[i+1]-1 */
  const int *slot_token;   /* [slots] the token, ascending within an expert */
  const float *slot_gate;  /* [slots] combine weight */
  const int *token_begin;  /* [n+1] slots of token t are token_slot[token_begin[t]] .. token_slot[token_begin[t+1]-1] */
  const int *token_slot;   /* [slots] */
  const float *scores;     /* [n,e] S, of every token for every expert, or NULL: the router has none */
  const float *thresholds; /* [e] the cut-offs that training left, or NULL: none are kept, or none set yet */
  const float *cutoffs;    /* [e] those of this batch, infinite where an expert took none; NULL: not cut by rank */
  const int *demand;       /* [e] tokens that asked for the expert */
  int capacity;            /* tokens that an expert may hold */
  int64_t dropped;         /* choices that found their expert full */
  double target;           /* tokens an expert: k = n c / e where experts choose, else its even share of the choices */
} choir_routing;

/* The expert of a slot. */
CHOIR_API int choir_routing_expert(const choir_routing *routing, int slot);

/* Is shown routings by choir_model_on_routing. */
typedef void (*choir_routing_callback)(void *context, const choir_routing *routing);

/* Statistics of one layer over any number of batches. Entropies are in nats. docs/inspecting.md has the formulas. */
typedef struct choir_routing_stats {
  int layer, moe, experts, vocab_size;
  int64_t tokens;       /* valid ones */
  int64_t assignments;  /* filled slots */
  int64_t dropped;      /* choices that found their expert full */
  int64_t capacity;     /* tokens that an expert may hold, over all batches */
  double target;        /* tokens that an expert should hold, over all batches */
  double gate_mass;     /* mean over tokens of the sum of their gates */
  double token_entropy; /* mean over tokens of the entropy of S over experts; NaN: the router has no S */
  double load_entropy;  /* of the distribution of slots over experts; at most log(experts) */
  double drift;         /* mean over experts of |cutoff - threshold| / threshold; NaN: unknown */
  int64_t *load;        /* [e] tokens held */
  int64_t *demand;      /* [e] tokens that asked */
  int64_t *histogram;   /* [e+1] tokens held by 0, 1, ..., e experts */
  int64_t *shared;      /* [e,e] tokens that both experts hold; the diagonal is the load. NULL: not counted */
  double *gate;         /* [e] mean gate of the tokens held; 0 where there are none */
  double *threshold;    /* [e] as training left it; NaN: none */
  double *cutoff;       /* [e] mean over batches of this text's cut-off; NaN: none */
  int64_t *ranked;      /* [e] tokens of the batches that gave a cut-off */
  int64_t *text;        /* [V] how often each token stands in the text. NULL: not counted */
  int64_t *held;        /* [e,V] how often the expert holds it. NULL: not counted */
} choir_routing_stats;

/* Empty statistics of one layer. vocab_size 0: neither tokens nor overlap are counted, which is cheap in time and
 * memory. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_MEMORY. Free in any case. */
CHOIR_API int choir_routing_stats_begin(int experts, int vocab_size, choir_routing_stats *stats);
CHOIR_API void choir_routing_stats_free(choir_routing_stats *stats);

/* Adds a routing of as many experts (else nothing happens). Means stay means over all that was added. */
CHOIR_API void choir_routing_stats_add(choir_routing_stats *stats, const choir_routing *routing);

/* Jaccard overlap of two experts: tokens held by both over tokens held by either; 0 where neither holds any. */
CHOIR_API double choir_routing_stats_overlap(const choir_routing_stats *stats, int a, int b);

/* A token that an expert holds: how often, and how much more often than its share of the text would give. */
typedef struct choir_favourite {
  int32_t token;
  int64_t held, text;
  double lift; /* (held / load) / (text / tokens) */
} choir_favourite;

/* An expert's favourites, best first, at most `most`; gives their number. Most frequent: by `held`. Most typical: by
 * held * log(lift), the token's part in the divergence of the expert's tokens from the text's; lift above 1 only. Equal
 * ones: the lower token first. */
CHOIR_API int choir_routing_stats_frequent(const choir_routing_stats *stats, int expert, int most,
                                           choir_favourite *favourites);
CHOIR_API int choir_routing_stats_typical(const choir_routing_stats *stats, int expert, int most,
                                          choir_favourite *favourites);

#ifdef __cplusplus
}
#endif
#endif
