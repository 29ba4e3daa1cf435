/* The routing of one MoE layer, token by token, and its statistics. */
#ifndef CHOIR_ROUTING_H
#define CHOIR_ROUTING_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* The proof of an assignment (capped_expert_choice, base), summed over pools and calls. The gap compares the sum of
 * the assigned scores with the bound of the linear programme's dual at the solver's prices (docs/assignment.md): 0 is a
 * proof that nothing better exists. It is a proof only if no token is over its cap; else it may be negative. */
typedef struct choir_certificate {
  int64_t assignments;  /* pools that were assigned; 0: everything else is 0 too */
  int64_t iterations;   /* dykstra: rounds over its sets; exact: tokens moved along augmenting paths */
  double gap;           /* (bound - value) / bound, the largest */
  double expert_before; /* largest |tokens of an expert - k| of the solver's own result, before TopK */
  double token_before;  /* largest excess of a token's experts over its cap, before TopK */
  int expert_after;     /* the same of the experts' tokens that are used ... */
  int token_after;      /* ... and of the tokens' experts */
  int64_t over_cap;     /* tokens that have more experts than their cap allows */
  int64_t reserved[8];
} choir_certificate;

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
  const float *cutoffs;    /* [e] cut-offs of this batch, infinite if an expert took no token; NULL: not cut by rank */
  const int *demand;       /* [e] tokens that asked for the expert */
  int capacity;            /* tokens that an expert may hold */
  int64_t dropped;         /* choices that found their expert full */
  double aux_loss;         /* unweighted; 0 if the router has none */
  choir_certificate certificate; /* all 0 if no solver assigned */
  double target; /* tokens an expert: k = n c / e if experts choose, else its even share of the choices */
  double z_loss; /* unweighted; 0 without z_loss_weight */
} choir_routing;

/* The expert of a slot. */
CHOIR_API int choir_routing_expert(const choir_routing *routing, int slot);

/* Is shown routings by choir_model_on_routing. */
typedef void (*choir_routing_callback)(void *context, const choir_routing *routing);

/* Statistics of one layer over any number of routings; all arrays are owned by the struct. Entropies are in nats.
 * docs/inspecting.md has the formulas. The fields after `histogram` are counted from routings that a callback sees
 * (choir_route_stats_count); without a callback they are 0, NaN or NULL. */
typedef struct choir_route_stats {
  int layer, moe; /* as in choir_routing */
  int experts;
  int64_t tokens;      /* valid ones */
  int64_t assignments; /* filled slots */
  int64_t dropped;     /* choices that found their expert full */
  int64_t capacity;    /* tokens that an expert may hold (expert_choice: k, of all pools together), summed */
  double aux_loss;     /* unweighted, mean over tokens; 0 if the router has none */
  double gate_mass;    /* mean over tokens of the sum of their gates */
  choir_certificate certificate;
  int64_t *load;        /* [e] tokens held */
  int64_t *demand;      /* [e] tokens that asked; above capacity: over-capacity (expert_choice: = load) */
  int64_t *histogram;   /* [e+1] tokens held by 0, 1, ..., e experts */
  double target;        /* tokens that an expert should hold, summed */
  double token_entropy; /* mean over tokens of the entropy of S over experts; NaN: the router has no S */
  double load_entropy;  /* of the distribution of slots over experts; at most log(experts) */
  double drift;         /* mean over experts of |cutoff - threshold| / threshold; NaN: unknown */
  double *gate;         /* [e] mean gate of the expert's tokens; 0: it has no token */
  double *threshold;    /* [e] as training left it; NaN: no threshold */
  double *cutoff;       /* [e] mean over batches of this text's cut-off; NaN: no cut-off */
  int64_t *ranked;      /* [e] tokens of the batches that gave a cut-off */
  int vocab_size;       /* 0: what follows is not counted */
  int64_t *shared;      /* [e,e] tokens that both experts hold; the diagonal is the load */
  int64_t *text;        /* [V] how often each token is in the text */
  int64_t *held;        /* [e,V] how often the expert holds it */
  double z_loss;        /* unweighted, mean over tokens; 0 without z_loss_weight */
  int64_t reserved[15];
} choir_route_stats;

/* Empty statistics of one layer, for choir_route_stats_count. vocab_size 0: neither tokens nor overlap are counted,
 * which is cheap in time and memory. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_MEMORY. Free in any case. */
CHOIR_API int choir_route_stats_init(int experts, int vocab_size, choir_route_stats *stats);
CHOIR_API void choir_route_stats_clear(choir_route_stats *stats);

/* Adds a routing of as many experts to statistics that choir_route_stats_init made (else nothing happens). Means stay
 * means over all that was added. */
CHOIR_API void choir_route_stats_count(choir_route_stats *stats, const choir_routing *routing);

/* Everything up to the histogram as one JSON object, malloc'd, NULL after an error; docs/formats.md has the fields.
 * CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_route_stats_get_json(const choir_route_stats *stats, char **json);

/* Jaccard overlap of two experts: tokens held by both over tokens held by either; 0 if neither holds any. */
CHOIR_API double choir_route_stats_overlap(const choir_route_stats *stats, int a, int b);

/* A token that an expert holds: how often, and how much more often than its share of the text would give. */
typedef struct choir_favourite {
  int32_t token;
  int64_t held, text;
  double lift; /* (held / load) / (text / tokens) */
  int64_t reserved[2];
} choir_favourite;

/* An expert's favourites, best first, at most `most`; gives their number. Most frequent: by `held`. Most typical: by
 * held * log(lift), the token's part in the divergence of the expert's tokens from the text's; lift above 1 only. Equal
 * ones: the lower token first. */
CHOIR_API int choir_route_stats_get_frequent(const choir_route_stats *stats, int expert, int most,
                                             choir_favourite *favourites);
CHOIR_API int choir_route_stats_get_typical(const choir_route_stats *stats, int expert, int most,
                                            choir_favourite *favourites);

CHOIR_C_END
#endif
