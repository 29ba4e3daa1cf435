/* Routing ops: from scores to a record, from gate gradients back to score gradients, and counts. */
#ifndef CH_OP_ROUTING_H
#define CH_OP_ROUTING_H

#include "base/rng.h"
#include "op/exec.h"

/* The routing record: the only output of routers that gather, expert FFN and combine read. Code after a router does not
 * depend on which router it was. */
typedef struct ch_record {
  int tokens, experts;      /* n, e */
  int max_slots;            /* capacity of the arrays below, of which expert_begin[experts] slots are filled */
  int load;                 /* slots per expert if all experts have the same number and the host knows it; else -1 */
  int max;                  /* upper bound of the slots of one expert if the router has one; else 0 */
  const int *host_begin;    /* [e+1] host: expert_begin if it was downloaded for products on a device; else NULL */
  int CH_DEV *expert_begin; /* [e+1] slots of expert i are expert_begin[i] .. expert_begin[i+1]-1 */
  int CH_DEV *slot_token;   /* [slots] the token in the slot, ascending within an expert */
  real CH_DEV *slot_gate;   /* [slots] combine weight */
  int CH_DEV *token_begin;  /* [n+1] the same pairs by token, so that combine adds in a fixed order without atomics: */
  int CH_DEV *token_slot; /* [slots] slots of token t are token_slot[token_begin[t] .. token_begin[t+1]-1], ascending */
} ch_record;

/* Allocates a record with capacity max_slots from an arena. */
static inline void ch_record_alloc(ch_arena *a, ch_record *r, int n, int e, int max_slots) {
  *r = (ch_record){.tokens = n, .experts = e, .max_slots = max_slots, .load = -1};
  r->expert_begin = CH_NEW(a, int, e + 1);
  r->slot_token = CH_NEW(a, int, max_slots);
  r->slot_gate = CH_NEW(a, real, max_slots);
  r->token_begin = CH_NEW(a, int, n + 1);
  r->token_slot = CH_NEW(a, int, max_slots);
}

/* Number of valid tokens among n; valid [n] in the caller's memory, or NULL: all. */
static inline int ch_valid_count(const uint8_t *valid, int n) {
  if (!valid) return n;
  int count = 0;
  for (int t = 0; t < n; t++) count += valid[t] != 0;
  return count;
}

/* Factors of the router's input: U[1-jitter, 1+jitter], a function of the token's index, rng_base + t, and the
 * column. */
typedef struct {
  int n, d;
  double jitter;
  ch_rng rng;
  uint64_t rng_base;
  real CH_DEV *factor; /* [n,d] */
} ch_jitter_args;

/* Top-k selection per expert: for expert i and every pool p, the k[p] tokens of largest score[t*e+i]. Ties go to the
 * lower token index; invalid tokens are never selected, and k[p] is at most the number of valid tokens. NaN never
 * compares larger than a number. Writes expert_begin, and slot_token ascending within an expert; op `gate` computes
 * gates. Uses linear-time selection, not a sort.
 *
 * Pool p has pool_begin[p+1] - pool_begin[p] tokens: with stride 1 the consecutive tokens from pool_begin[p] on, else
 * every stride-th token from token p on (p < stride). An expert's slots are ascending over all pools. */
typedef struct {
  int pools;
  const int *pool_begin;       /* [pools+1] host */
  const int *k;                /* [pools] host */
  int stride;                  /* 0 means 1 */
  const uint8_t CH_DEV *valid; /* [n] or NULL: all */
  const real CH_DEV *score;    /* [n,e] */
  const ch_record *record;
  real CH_DEV *cutoff; /* [pools,e] or NULL: each expert's k-th largest score of the pool; +infinity if k is 0 */
} ch_select_args;

/* mean[i] = the mean of cutoff[.,i] over the pools where it is finite; +infinity if there is none. */
typedef struct {
  int pools, e;
  const real CH_DEV *cutoff; /* [pools,e] */
  real CH_DEV *mean;         /* [e] = */
} ch_mean_cutoff_args;

/* mean += weight * (value - mean) where value is finite; with `fresh`, the old mean counts as 0. */
typedef struct {
  int count, fresh;
  double weight;
  const real CH_DEV *value;
  real CH_DEV *mean;
} ch_running_mean_args;

/* Top-K per token: the `count` experts of largest score[t,i] - shift[i], best first; ties: the lower expert first. NaN
 * never compares larger: a row of NaN gives experts 0, 1, ... With `nulls`, there are as many additional null experts.
 * Each has an equal part of 1 - (sum of the token's scores), and loses ties; a choice of a null expert is -1. */
typedef struct {
  int n, e, count;
  int nulls;
  const uint8_t CH_DEV *valid; /* [n] or NULL: all */
  const real CH_DEV *score;    /* [n,e] */
  const real CH_DEV *shift;    /* [e] or NULL: 0 */
  int CH_DEV *choice;          /* [n,count] = ; -1 for padding */
  real CH_DEV *value;          /* [n,count] = score - shift of the choices */
  real CH_DEV *margin;         /* [n,e] or NULL: score minus the mean of the last two values (count > 1) */
} ch_best_args;

/* Each token's single expert, id mod e; ids are not read if e is 1. */
typedef struct {
  int n, e;
  const uint8_t CH_DEV *valid; /* [n] or NULL: all */
  const int32_t CH_DEV *id;    /* [n], not negative */
  int CH_DEV *choice;          /* [n] = ; -1 for padding */
} ch_modulo_args;

/* GShard's random second expert: a token's second choice is kept with probability 2 g2, where g2 = value2 / (value1 +
 * value2) (0 if both are 0); otherwise it becomes -1. Uses number rng_base + t of the random stream. */
typedef struct {
  int n;
  ch_rng rng;
  uint64_t rng_base;
  const real CH_DEV *value; /* [n,2] */
  int CH_DEV *choice;       /* [n,2] */
} ch_sample_second_args;

/* Assigns tokens to their chosen experts, all first choices before all second ones, each in token order, until an
 * expert has `capacity` tokens; later choices of the expert are dropped. With `value`, tokens are processed in
 * descending order of value[t,0] (NaN last; ties in token order). Writes expert_begin and slot_token of the record. */
typedef struct {
  int count, capacity;
  int CH_DEV *choice;       /* [n,count], -1: none; dropped choices become -1 */
  const real CH_DEV *value; /* [n,count] or NULL */
  const ch_record *record;
  int CH_DEV *demand;      /* [e] = choices of the expert, including dropped ones */
  int64_t CH_DEV *dropped; /* [1] = dropped choices */
} ch_place_args;

/* keep[t,i] = 1 if token t is valid, score[t,i] >= threshold[i] and, with a cap, score - threshold is among the token's
 * `cap` largest (ties: the lower expert); else 0. */
typedef struct {
  int n, e, cap; /* cap 0: none */
  const uint8_t CH_DEV *valid;
  const real CH_DEV *score, *threshold; /* [n,e], [e] */
  uint8_t CH_DEV *keep;                 /* [n,e] = */
} ch_threshold_args;

/* expert_begin and slot_token of the record from marks keep[n,e], 0 or 1. */
typedef struct {
  const uint8_t CH_DEV *keep;
  const ch_record *record;
} ch_collect_args;

/* Threshold routing with bounded loads: expert i has the tokens of its record `max` whose score reaches the threshold,
 * but at least those of its record `min`; both are outputs of op `select`. Writes expert_begin and slot_token of the
 * record. */
typedef struct {
  const ch_record *min, *max;
  const real CH_DEV *min_cutoff; /* [e] */
  const uint8_t CH_DEV *valid;
  const real CH_DEV *score, *threshold; /* [n,e], [e] */
  const ch_record *record;
  int CH_DEV *demand;      /* [e] = valid tokens that reach the threshold */
  int64_t CH_DEV *dropped; /* [1] = tokens that reach the threshold but exceed the upper bound */
} ch_within_args;

/* The combine weight of every slot, by one of these rules. Backward: dscore from dgate, 0 for pairs without a slot.
 * With SHARE both choices of a token get a gradient; dgate of a dropped choice counts as 0. */
typedef enum {
  CH_GATE_EVEN,    /* 1 / count */
  CH_GATE_SCORE,   /* score[t,i] of token t at expert i */
  CH_GATE_SIGMOID, /* 1 / (1 + exp(-score[t,i])) */
  CH_GATE_SHARE    /* score[t,i] / sum of the values of the token's two choices (score[t,i] if the sum is 0) */
} ch_gate_rule;
typedef struct {
  ch_gate_rule rule;
  int count;                /* EVEN */
  const ch_record *record;  /* slot_gate = , and read by SIGMOID's backward */
  const real CH_DEV *score; /* [n,e], not with EVEN */
  const int CH_DEV *choice; /* [n,2] SHARE's backward */
  const real CH_DEV *value; /* [n,2] SHARE */
  const real CH_DEV *dgate; /* [slots] */
  real CH_DEV *dscore;      /* [n,e] = */
} ch_gate_args;

/* Gates of every token scaled so that they sum to 1: gate[s] /= sum[t], where sum[t] adds the token's slots in
 * ascending order; gates that sum to 0 are not changed. Backward replaces dgate of the normalized gates by that of the
 * original gates: (dgate[s] - sum of gate[r] * dgate[r] over the token's slots r) / sum[t], with normalized gates.
 * Needs the record's index. */
typedef struct {
  const ch_record *record; /* slot_gate is changed; backward reads it */
  real CH_DEV *sum;        /* [n] out; in for backward */
  real CH_DEV *dgate;      /* [slots] */
} ch_normalize_args;

/* The load-balancing loss of GShard and Switch, e sum_i f_i P_i: f_i is the fraction of the first `counted` choices of
 * valid tokens that are expert i, a constant; P_i is the mean score of expert i over valid tokens. With `shares`, a
 * token's scores are first divided by their sum. With `nulls` (not with `shares`), e and the sum include the null
 * experts (op `best`), which share the choices of -1 equally. Tokens are divided into groups of `span` tokens; *loss is
 * the mean over the `groups` groups with valid tokens. Backward adds `scale` times the gradient of *loss. */
typedef struct {
  int n, e, count;
  int nulls;
  int counted, shares, span, groups;
  const uint8_t CH_DEV *valid;
  const int CH_DEV *choice; /* [n,count], first choices first; -1 for padding */
  const real CH_DEV *score; /* [n,e] */
  double CH_DEV *loss;      /* [1] = */
  real scale;
  real CH_DEV *dscore_acc; /* [n,e] += */
} ch_balance_args;

/* The z-loss of routers (Zoph et al. 2022) is the mean of lse^2 over valid tokens, lse[t] = log sum_i exp(logit[t,i]);
 * op `tally` computes this mean. Backward: dlogit_acc += scale lse softmax(logit), for valid tokens; scale 2 gives the
 * gradient of the sum of lse^2. */
typedef struct {
  int n, e;
  const uint8_t CH_DEV *valid; /* [n] or NULL: all; backward */
  const real CH_DEV *logit;    /* [n,e] */
  real CH_DEV *lse;            /* [n] = ; in for backward */
  real scale;
  real CH_DEV *dlogit_acc; /* [n,e] += */
} ch_z_loss_args;

/* Prices (dual variables) of quantile balancing: beta = (beta + next) / 2 if `next` is not NULL (all 0 if the prices
 * are equal), then all prices are shifted so that their sum is 1: choices do not depend on a shift, but a running mean
 * does. `next` may be beta. */
typedef struct {
  int e;
  const real CH_DEV *next; /* [e] or NULL */
  real CH_DEV *beta;       /* [e] */
} ch_price_args;

/* Load balancing by biases (Wang et al. 2024, 2408.15664): price[i] += rate * sign(demand[i] - mean demand); the price
 * is subtracted from scores. With `fresh`, the old price counts as 0. */
typedef struct {
  int e, fresh;
  double rate;
  const int CH_DEV *demand; /* [e] */
  real CH_DEV *price;       /* [e] */
} ch_update_bias_args;

/* Demand if experts choose: demand[i] = number of slots of expert i. */
typedef struct {
  const ch_record *record;
  int CH_DEV *demand; /* [e] = */
} ch_loads_args;

/* Fills token_begin and token_slot from expert_begin and slot_token (a counting sort). */
typedef struct {
  const ch_record *record;
} ch_index_args;

/* Extracts the slots of tokens begin .. end-1, renumbered from 0: sets expert_begin, slot_token and slot_gate of
 * `part`. */
typedef struct {
  const ch_record *all;
  int begin, end;
  const ch_record *part;
} ch_part_args;

/* Summarizes a routing as two rows of numbers, which the host downloads. */
typedef struct {
  const ch_record *record;
  const uint8_t CH_DEV *valid;   /* [n] or NULL: all */
  const double CH_DEV *aux_loss; /* [1] */
  const int64_t CH_DEV *dropped; /* [1] */
  const int CH_DEV *demand;      /* [e] */
  const real CH_DEV *lse;        /* [n] output of op z_loss, or NULL: the mean of lse^2 is 0 */
  double CH_DEV *sums;           /* [3] = aux_loss; sum of all gates, in the order of slots; mean of lse^2 */
  int64_t CH_DEV *counts; /* [3e+2] = dropped; load [e]; demand [e]; valid tokens with 0, 1, ... e experts [e+1] */
} ch_tally_args;

/* ---- for the exact solver (moe/assign), on an executor with host memory ---- */

/*    cost[j] = min over r in row[] of score[r, from] - open[r, j]   (in double), carrier[j] = the first row with this
 * minimum. `open` is the score, or -infinity if the row must not move to the column; if no row can, cost[j] is
 * +infinity and carrier[j] -1. Scores are finite. Runs on one thread. */
typedef struct {
  int rows, from;
  const int CH_DEV *row; /* [rows] */
  int64_t ld;            /* of score and open: columns, a multiple of 16 */
  const real CH_DEV *score, *open;
  double CH_DEV *cost; /* [ld] */
  int CH_DEV *carrier; /* [ld] */
} ch_exchange_args;

#endif
