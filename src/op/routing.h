/* Ops of routing: from scores to a record, from gates back to scores, and what is counted on the way. */
#ifndef CH_OP_ROUTING_H
#define CH_OP_ROUTING_H

#include "base/rng.h"
#include "op/exec.h"

/* The routing record: the one thing that routers fill and that gather, expert FFN and combine read.
 * Nothing after a router ever asks which router ran. */
typedef struct ch_record {
  int tokens, experts;   /* n, e */
  int max_slots;         /* what the arrays below have room for; expert_begin[experts] of them are filled */
  int load;              /* slots of every expert, where all have as many and the host knows it beforehand; else -1 */
  int max;               /* slots of one expert at most, where the router bounds them; else 0 */
  const int *host_begin; /* [e+1] host: expert_begin where it has been read for products of a device; else NULL */
  int CH_DEV *expert_begin; /* [e+1] slots of expert i are expert_begin[i] .. expert_begin[i+1]-1 */
  int CH_DEV *slot_token;   /* [slots] the token in the slot, ascending within an expert */
  real CH_DEV *slot_gate;   /* [slots] combine weight */
  int CH_DEV *token_begin;  /* [n+1] the same pairs by token, so that combine adds in a fixed order without atomics: */
  int CH_DEV *token_slot; /* [slots] slots of token t are token_slot[token_begin[t] .. token_begin[t+1]-1], ascending */
} ch_record;

/* Allocates a record with room for max_slots from an arena. */
static inline void ch_record_alloc(ch_arena *a, ch_record *r, int n, int e, int max_slots) {
  *r = (ch_record){.tokens = n, .experts = e, .max_slots = max_slots, .load = -1};
  r->expert_begin = CH_NEW(a, int, e + 1);
  r->slot_token = CH_NEW(a, int, max_slots);
  r->slot_gate = CH_NEW(a, real, max_slots);
  r->token_begin = CH_NEW(a, int, n + 1);
  r->token_slot = CH_NEW(a, int, max_slots);
}

/* How many of `n` tokens take part; valid [n] on the side that asks, or NULL: all. */
static inline int ch_valid_count(const uint8_t *valid, int n) {
  if (!valid) return n;
  int count = 0;
  for (int t = 0; t < n; t++) count += valid[t] != 0;
  return count;
}

/* Factors of the router's input: U[1-jitter, 1+jitter], a function of the token's number, rng_base + t, and the column.
 */
typedef struct {
  int n, d;
  double jitter;
  ch_rng rng;
  uint64_t rng_base;
  real CH_DEV *factor; /* [n,d] */
} ch_jitter_args;

/* Top-k selection per expert: for expert i and every pool p, the k[p] tokens of largest score[t*e+i]. Ties go to the
 * lower token index; invalid tokens are never taken and k[p] is at most the number of valid ones. NaN never compares
 * larger than a number. Writes slot_token ascending within an expert and expert_begin; gates are left to op `gate`.
 * Selection in linear time, not a sort.
 *
 * Pool p has pool_begin[p+1] - pool_begin[p] tokens: with stride 1 the run of tokens from pool_begin[p] on, else every
 * stride-th from token p on (p < stride). Runs of one pool are ascending, so are an expert's slots over all pools. */
typedef struct {
  int pools;
  const int *pool_begin;       /* [pools+1] host */
  const int *k;                /* [pools] host */
  int stride;                  /* 0 means 1 */
  const uint8_t CH_DEV *valid; /* [n] or NULL: all */
  const real CH_DEV *score;    /* [n,e] */
  const ch_record *record;
  real CH_DEV *cutoff; /* [pools,e] or NULL: each expert's k-th best score of the pool; +infinity where k is 0 */
} ch_select_args;

/* mean[i] = the mean of cutoff[.,i] over the pools where it is finite; +infinity where there is none. */
typedef struct {
  int pools, e;
  const real CH_DEV *cutoff; /* [pools,e] */
  real CH_DEV *mean;         /* [e] = */
} ch_mean_cutoff_args;

/* mean += weight * (value - mean) where value is finite; with `fresh`, what mean holds counts as 0. */
typedef struct {
  int count, fresh;
  double weight;
  const real CH_DEV *value;
  real CH_DEV *mean;
} ch_running_mean_args;

/* The `count` experts of largest score[t,i] - shift[i] of every token, best first, of equal ones the lower. A score of
 * NaN is no better than any before it: a row of NaN gives experts 0, 1, ... With `nulls`, a token chooses from as many
 * null experts too, which share evenly what its scores leave of 1 and come after experts of equal score; choices that
 * they take are -1. */
typedef struct {
  int n, e, count;
  int nulls;
  const uint8_t CH_DEV *valid; /* [n] or NULL: all */
  const real CH_DEV *score;    /* [n,e] */
  const real CH_DEV *shift;    /* [e] or NULL: 0 */
  int CH_DEV *choice;          /* [n,count] = , -1 where the token is not valid */
  real CH_DEV *value;          /* [n,count] = their score - shift, of every token */
  real CH_DEV *margin;         /* [n,e] or NULL: score less what is half-way between the last two values (count > 1) */
} ch_best_args;

/* Each token's one expert, id mod e; of one expert no id is asked. */
typedef struct {
  int n, e;
  const uint8_t CH_DEV *valid; /* [n] or NULL: all */
  const int32_t CH_DEV *id;    /* [n], not negative */
  int CH_DEV *choice;          /* [n] = , -1 where the token is not valid */
} ch_modulo_args;

/* GShard's random second expert: a token's second choice stays with probability 2 g2, where g2 = value2 / (value1 +
 * value2) (0 if both are 0); otherwise it becomes -1. Number rng_base + t of the random stream decides. */
typedef struct {
  int n;
  ch_rng rng;
  uint64_t rng_base;
  const real CH_DEV *value; /* [n,2] */
  int CH_DEV *choice;       /* [n,2] */
} ch_sample_second_args;

/* Tokens go to the experts that they chose, all first choices before all second ones, each in token order, until an
 * expert holds `capacity`; what comes later is dropped. With `value`, tokens come in the order of their first one, the
 * largest first (NaN last), of equal ones in token order. Writes expert_begin and slot_token of the record. */
typedef struct {
  int count, capacity;
  int CH_DEV *choice;       /* [n,count], -1: none; a dropped one becomes -1 */
  const real CH_DEV *value; /* [n,count] or NULL */
  const ch_record *record;
  int CH_DEV *demand;      /* [e] = choices of the expert */
  int64_t CH_DEV *dropped; /* [1] = choices that found it full */
} ch_place_args;

/* keep[t,i] = 1 where score[t,i] >= threshold[i] and, under a cap, score - threshold is among the token's `cap` best
 * (of equal ones the lower expert); 0 elsewhere and where the token is not valid. */
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

/* Expert i takes its tokens of `most` whose score reaches the threshold, but no fewer than those of `least` (best
 * tokens both, as op `select` finds them). Writes expert_begin and slot_token of the record. */
typedef struct {
  const ch_record *min, *max;
  const real CH_DEV *min_cutoff; /* [e] */
  const uint8_t CH_DEV *valid;
  const real CH_DEV *score, *threshold; /* [n,e], [e] */
  const ch_record *record;
  int CH_DEV *demand;      /* [e] = valid tokens that reach the threshold */
  int64_t CH_DEV *dropped; /* [1] = choices dropped because the expert was full */
} ch_within_args;

/* The combine weight of every slot, by one of these rules. Backward: dscore from dgate, 0 where nothing is held. Of a
 * share both choices have a gradient, with 0 for the gate of one that is not held. */
typedef enum {
  CH_GATE_EVEN,    /* 1 / count */
  CH_GATE_SCORE,   /* score[t,i] of token t at expert i */
  CH_GATE_SIGMOID, /* 1 / (1 + exp(-score[t,i])) */
  CH_GATE_SHARE    /* score[t,i] / sum of the values of the token's two choices (where that is 0: / 1) */
} ch_gate_rule;
typedef struct {
  ch_gate_rule rule;
  int count;                /* EVEN */
  const ch_record *record;  /* slot_gate = , and read by SIGMOID's backward */
  const real CH_DEV *score; /* [n,e] but with EVEN */
  const int CH_DEV *choice; /* [n,2] SHARE's backward */
  const real CH_DEV *value; /* [n,2] SHARE */
  const real CH_DEV *dgate; /* [slots] */
  real CH_DEV *dscore;      /* [n,e] = */
} ch_gate_args;

/* Gates of every token scaled so that they sum to 1: gate[s] /= sum[t], where sum[t] adds the token's slots in
 * ascending order; a token whose gates sum to 0 keeps them. Backward: dgate, of the scaled gates, becomes that of the
 * gates before: (dgate[s] - sum over the token's slots of gate dgate) / sum[t]. Needs the record's index. */
typedef struct {
  const ch_record *record; /* slot_gate is changed; backward reads it */
  real CH_DEV *sum;        /* [n] out; in for backward */
  real CH_DEV *dgate;      /* [slots] */
} ch_normalize_args;

/* The load-balancing loss of GShard and Switch, e sum_i f_i P_i: f_i is the share of i among the first `counted`
 * choices of valid tokens, a constant; P_i is the mean score of expert i over valid tokens. With `shares`, a token's
 * scores are first divided by their sum. With `nulls`, the sum is over these null experts too (op `best`), which share
 * all choices that no expert has, and e counts them; not with `shares`. Tokens are cut into spans of `span`; *loss is
 * the mean over the `groups` spans that have valid tokens. Backward adds `scale` times the gradient of *loss. */
typedef struct {
  int n, e, count;
  int nulls;
  int counted, shares, span, groups;
  const uint8_t CH_DEV *valid;
  const int CH_DEV *choice; /* [n,count], first choices first, -1 where a token is not valid */
  const real CH_DEV *score; /* [n,e] */
  double CH_DEV *loss;      /* [1] = */
  real scale;
  real CH_DEV *dscore_acc; /* [n,e] += */
} ch_balance_args;

/* The z-loss of routers (Zoph et al. 2022) is the mean of lse^2 over valid tokens, lse[t] = log sum_i exp(logit[t,i]);
 * op `tally` takes it. Backward: dlogit_acc += scale lse softmax(logit), of valid tokens; of lse^2 itself scale is 2.
 */
typedef struct {
  int n, e;
  const uint8_t CH_DEV *valid; /* [n] or NULL: all; backward */
  const real CH_DEV *logit;    /* [n,e] */
  real CH_DEV *lse;            /* [n] = ; in for backward */
  real scale;
  real CH_DEV *dlogit_acc; /* [n,e] += */
} ch_z_loss_args;

/* Prices of quantile balancing: beta moves half-way to `next` if `next` is not NULL (equal prices become 0), then all
 * prices are shifted to add up to 1: choices do not depend on a shift, but a running mean does. `next` may be beta. */
typedef struct {
  int e;
  const real CH_DEV *next; /* [e] or NULL */
  real CH_DEV *beta;       /* [e] */
} ch_price_args;

/* Balance by a bias (Wang et al. 2024, 2408.15664): price[i] += rate * sign(demand[i] - mean demand), so an expert that
 * more tokens than the mean asked for becomes dearer. With `fresh`, what price holds counts as 0. */
typedef struct {
  int e, fresh;
  double rate;
  const int CH_DEV *demand; /* [e] */
  real CH_DEV *price;       /* [e] */
} ch_update_bias_args;

/* Demand where experts choose: demand[i] = slots of expert i. */
typedef struct {
  const ch_record *record;
  int CH_DEV *demand; /* [e] = */
} ch_loads_args;

/* Fills token_begin and token_slot from expert_begin and slot_token (a counting sort). */
typedef struct {
  const ch_record *record;
} ch_index_args;

/* The slots of tokens begin .. end-1, counted from begin: part's expert_begin, slot_token and slot_gate. */
typedef struct {
  const ch_record *all;
  int begin, end;
  const ch_record *part;
} ch_part_args;

/* Sums up a routing in one row of numbers for the host. */
typedef struct {
  const ch_record *record;
  const uint8_t CH_DEV *valid;   /* [n] or NULL: all */
  const double CH_DEV *aux_loss; /* [1] */
  const int64_t CH_DEV *dropped; /* [1] */
  const int CH_DEV *demand;      /* [e] */
  const real CH_DEV *lse;        /* [n] of op z_loss, or NULL: the mean of its squares is 0 */
  double CH_DEV *sums;           /* [3] = aux_loss; sum of all gates, in the order of slots; mean of lse^2 */
  int64_t CH_DEV *counts; /* [3e+2] = dropped; load [e]; demand [e]; valid tokens with 0, 1, ... e experts [e+1] */
} ch_tally_args;

/* ---- for the exact solver: the host asks for it, on an executor of its own memory (moe/assign) ---- */

/* The cheapest exchange: of the listed rows, which one loses least when it gives up column `from` for column j,
 *   cost[j] = min over r in row[] of score[r, from] - open[r, j]   (in double), carrier[j] = the first r that reaches
 * it; `open` is the score where a row may take the column and -infinity where it may not: then cost[j] is +infinity and
 * carrier[j] -1. Scores are finite. One thread. */
typedef struct {
  int rows, from;
  const int CH_DEV *row; /* [rows] */
  int64_t ld;            /* of score and open: columns, a multiple of 16 */
  const real CH_DEV *score, *open;
  double CH_DEV *cost; /* [ld] */
  int CH_DEV *carrier; /* [ld] */
} ch_exchange_args;

#endif
