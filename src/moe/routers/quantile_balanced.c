/* Quantile balancing: every token takes its K best experts of S - beta, and beta, a price per expert, is what makes
 * about n K / e tokens take each. No token is dropped and no auxiliary loss is needed; the gate is the raw score.
 *
 * Prices are the multipliers of "every expert takes n K / e" in the linear programme of docs/design.md with the row
 * rule "K per token". Each of its two blocks has a minimum in closed form, and they alternate: alpha_t, between the
 * K-th and the next best of S[t] - beta, and beta_i, between the (n K / e)-th and the next best of S[.,i] - alpha. */
#include "moe/routers/pool.h"
#include "moe/routers/threshold.h"
#include "moe/routers/token_choice.h"

enum { ITERATIONS = 16 }; /* loads within a few per cent of each other from 0, nearer from last step's prices */

/* beta_i: half-way between the k-th and the next best of margin[.,i]. A price equal to the k-th, or an alpha equal to a
 * K-th best, would in the end leave tokens undecided between two experts, and rounding would decide. So it would where
 * no price can tell tokens apart: each expert may take all of them (k is their number: one token, or a few), or their
 * rows are equal. Prices are equal then, and each takes its K best scores. */
static void sell(ch_exec *x, const ch_route_args *a, const real CH_DEV *margin, int valid, real CH_DEV *beta) {
  CH_SCRATCH(x);
  int e = a->e, k = ch_router_k(a->options->experts_per_token, valid, e), more = k < valid;
  ch_record taken;
  ch_record_alloc(&x->scratch, &taken, a->n, e, e * (k + 1));
  real CH_DEV *next = CH_NEW(&x->scratch, real, e);
  ch_select_best(x, a, margin, k, &taken, beta);
  if (more) ch_select_best(x, a, margin, k + 1, &taken, next);
  if (valid) CH_OP(x, price, .e = e, .next = more ? next : beta, .beta = beta);
}

/* Prices of this batch, from those in beta on. best: room for K + 1 choices a token. */
static void balance(ch_exec *x, const ch_route_args *a, const ch_choices *best, real CH_DEV *beta) {
  CH_SCRATCH(x);
  real CH_DEV *margin = CH_NEW(&x->scratch, real, (int64_t)a->n * a->e);
  int valid = ch_valid_count(a->tokens.mask, a->n);
  for (int round = 0; round < ITERATIONS; round++) {
    CH_OP(x, best, .n = a->n, .e = a->e, .count = best->per_token, .score = a->routing->scores, .shift = beta,
          .choice = best->choice, .value = best->value, .margin = margin);
    sell(x, a, margin, valid, beta);
  }
}

/* Prices start from the running mean that training keeps, or 0, which is in force unless this batch is to balance
 * itself. Every valid token goes to its K best of S - beta. */
static void choose_by_prices(ch_exec *x, const ch_route_args *a, int balances) {
  CH_SCRATCH(x);
  int K = a->options->experts_per_token;
  ch_choices c = ch_choices_alloc(x, a, K), best = ch_choices_alloc(x, a, K + 1);
  real CH_DEV *beta = a->routing->counts.cutoff, *kept = CH_NEW(&x->scratch, real, a->e);
  CH_OP(x, copy, .count = a->e, .x = a->kept.thresholds, .y = kept);
  CH_OP(x, copy, .count = a->e, .x = kept, .y = beta);
  if (K == a->e)
    CH_OP(x, price, .e = a->e, .beta = beta);
  else if (balances || ch_counting(x))
    balance(x, a, &best, beta);
  ch_choices_by_prices(x, a, balances && !a->by_threshold ? beta : kept, &c);
  ch_choices_place(x, a, &c, 0);
  ch_router_gates_from_scores(x, a);
}

/* Outside training a batch is balanced when its prices are to be kept (choir_calibrate). */
static void route_quantile_balanced(ch_exec *x, const ch_route_args *a) {
  choose_by_prices(x, a, a->training || a->kept.state);
}

static void causal(ch_exec *x, const ch_route_args *a) { choose_by_prices(x, a, 0); }

const ch_router ch_router_quantile_balanced = {
    .name = "quantile_balanced",
    .summary = "each token takes its K best experts at prices that balance their loads",
    .reads = CH_READS_SCORES,
    .looks = CH_LOOKS_IN_TRAINING,
    .options = CH_ROUTER_TAKES(normalize_gates) | CH_ROUTER_TAKES(score) | CH_ROUTER_TAKES(z_loss_weight) |
               CH_ROUTER_TAKES(gate_on) | CH_ROUTER_TAKES(experts_per_token) | CH_ROUTER_TAKES(decay) |
               CH_ROUTER_TAKES(threshold_after),
    .defaults = {.experts_per_token = 2, .capacity_factor = 1},
    .check = ch_token_choice_check,
    .max_slots = ch_token_choice_slots,
    .route = route_quantile_balanced,
    .causal = causal,
    .observe = ch_router_observe_cutoffs,
    .backward = ch_router_gates_backward,
};
