/* The routing of one MoE layer, token by token, and its statistics. */
#ifndef CHOIR_ROUTING_H
#define CHOIR_ROUTING_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* Certificate of optimality of an assignment (capped_expert_choice, base), accumulated over pools and calls. The gap
 * compares the sum of the assigned scores with the bound of the linear program's dual at the solver's prices
 * (docs/assignment.md): if no token exceeds its cap, a gap of 0 proves that the assignment is optimal (otherwise the
 * gap may be negative). */
typedef struct choir_certificate {
  int64_t assignments;  /* number of assigned pools; 0: all other fields are 0 */
  int64_t iterations;   /* dykstra: rounds over its constraint sets; exact: tokens moved along augmenting paths */
  double gap;           /* (bound - value) / bound, the largest */
  double expert_before; /* max over experts of |load - k| in the solver's result, before the final top-k */
  double token_before;  /* max over tokens of (experts - cap) in the solver's result, before the final top-k */
  int expert_after;     /* expert_before after the final top-k */
  int token_after;      /* token_before after the final top-k */
  int64_t over_cap;     /* tokens with more experts than their cap */
  int64_t reserved[8];
} choir_certificate;

/* One layer's routing of one batch: see choir_model_on_routing. A slot is one token at one expert. */
typedef struct choir_routing {
  int layer;               /* index of the layer in the model, from 0 */
  int moe;                 /* index among the MoE layers, from 0 */
  int tokens, experts;     /* n, padding included; e */
  const int32_t *token;    /* [n] ids, or NULL */
  const uint8_t *valid;    /* [n] 0: padding; NULL: no padding */
  const int *expert_begin; /* [e+1] slots of expert i are expert_begin[i] .. expert_begin[i+1]-1 */
  const int *slot_token;   /* [slots] the token, ascending within an expert */
  const float *slot_gate;  /* [slots] combine weight */
  const int *token_begin;  /* [n+1] slots of token t are token_slot[token_begin[t]] .. token_slot[token_begin[t+1]-1] */
  const int *token_slot;   /* [slots] */
  const float *scores;     /* [n,e] scores S; NULL: the router has none */
  const float
      *thresholds; /* [e] running means of cut-offs from training; NULL: the router has none, or none are set yet */
  const float *cutoffs; /* [e] cut-offs of this batch, infinite for an expert without tokens; NULL: the router does not
                           rank tokens */
  const int *demand;    /* [e] tokens that selected the expert */
  int capacity;         /* max tokens of an expert */
  int64_t dropped;      /* choices whose expert was full */
  double aux_loss;      /* unweighted; 0 if the router has none */
  choir_certificate certificate; /* all 0 if no solver assigned */
  double target;                 /* target load of an expert: k = n c / e if experts choose, else n K / e */
  double z_loss;                 /* unweighted; 0 without z_loss_weight */
} choir_routing;

/* The expert of a slot. */
CHOIR_API int choir_routing_expert(const choir_routing *routing, int slot);

/* Called with each routing (choir_model_on_routing). */
typedef void (*choir_routing_callback)(void *context, const choir_routing *routing);

/* Statistics of one layer over any number of routings; all arrays are owned by the struct. Entropies are in nats.
 * docs/inspecting.md has the formulas. The fields after `histogram` are filled by choir_route_stats_count from the
 * routings of a callback; without one they are 0, NaN or NULL. */
typedef struct choir_route_stats {
  int layer, moe; /* as in choir_routing */
  int experts;
  int64_t tokens;      /* valid tokens */
  int64_t assignments; /* filled slots */
  int64_t dropped;     /* choices whose expert was full */
  int64_t capacity;    /* max tokens of an expert, summed over routings (expert_choice: k, summed over pools, too) */
  double aux_loss;     /* unweighted, mean over tokens; 0 if the router has none */
  double gate_mass;    /* mean over tokens of the sum of their gates */
  choir_certificate certificate;
  int64_t *load;        /* [e] tokens of each expert */
  int64_t *demand;      /* [e] tokens that selected the expert, dropped ones included (expert_choice: equal to load) */
  int64_t *histogram;   /* [e+1] tokens with 0, 1, ..., e experts */
  double target;        /* target load of an expert, summed over routings */
  double token_entropy; /* mean over tokens of the entropy of S over experts; NaN: the router has no scores */
  double load_entropy;  /* of the distribution of slots over experts; at most log(experts) */
  double drift;         /* mean over experts of |cutoff - threshold| / threshold; NaN: unknown */
  double *gate;         /* [e] mean gate of the expert's tokens; 0: no token */
  double *threshold;    /* [e] threshold from training; NaN: no threshold */
  double *cutoff;       /* [e] mean cut-off over the batches of this text; NaN: no cut-off */
  int64_t *ranked;      /* [e] number of tokens in the batches with a cut-off */
  int vocab_size;       /* 0: the following fields are not counted */
  int64_t *shared;      /* [e,e] tokens that both experts process; the diagonal is the load */
  int64_t *text;        /* [V] occurrences of each token in the text */
  int64_t *held;        /* [e,V] number of these occurrences that the expert processes */
  double z_loss;        /* unweighted, mean over tokens; 0 without z_loss_weight */
  int64_t reserved[15];
} choir_route_stats;

/* Empty statistics of one layer, for choir_route_stats_count. vocab_size 0: tokens and overlap are not counted, which
 * saves time and memory. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_MEMORY. Free in any case. */
CHOIR_API int choir_route_stats_init(int experts, int vocab_size, choir_route_stats *stats);
CHOIR_API void choir_route_stats_clear(choir_route_stats *stats);

/* Adds a routing to statistics created by choir_route_stats_init. Means are over all added routings. Does nothing if
 * the numbers of experts differ. */
CHOIR_API void choir_route_stats_count(choir_route_stats *stats, const choir_routing *routing);

/* Writes the fields up to `histogram` as one JSON object, malloc'd, NULL after an error; docs/formats.md has the
 * fields. CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_route_stats_get_json(const choir_route_stats *stats, char **json);

/* Jaccard overlap of two experts: number of tokens of both, divided by the number of tokens of at least one; 0 if both
 * have no tokens. */
CHOIR_API double choir_route_stats_overlap(const choir_route_stats *stats, int a, int b);

/* A token type and its frequency at an expert, compared with its frequency in the text. */
typedef struct choir_favourite {
  int32_t token;
  int64_t held, text;
  double lift; /* (held / load) / (text / tokens) */
  int64_t reserved[2];
} choir_favourite;

/* Writes up to `max` token types of an expert in descending order, and returns their number. get_frequent orders by
 * `held`. get_typical orders by held * log(lift), where lift is above 1: the token's contribution to the KL divergence
 * between the token distributions of the expert and of the text. Ties: the lower token id first. */
CHOIR_API int choir_route_stats_get_frequent(const choir_route_stats *stats, int expert, int max,
                                             choir_favourite *favourites);
CHOIR_API int choir_route_stats_get_typical(const choir_route_stats *stats, int expert, int max,
                                            choir_favourite *favourites);

CHOIR_C_END
#endif
