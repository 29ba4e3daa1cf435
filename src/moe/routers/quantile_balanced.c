/* Quantile balancing: every token has the top-K experts of S - beta, where beta [e], one price per expert, is computed
 * so that each expert has about n K / e tokens. No token is dropped and no auxiliary loss is needed; the gate is the
 * raw score.
 *
 * Prices are the multipliers of "every expert takes n K / e" in the linear program of docs/design.md with the row
 * rule "K per token". Each of its two blocks has a minimum in closed form, and they alternate: alpha_t, between the
 * K-th and the next best of S[t] - beta, and beta_i, between the (n K / e)-th and the next best of S[.,i] - alpha. */
#include "base/error.h"
#include "moe/gates.h"
#include "moe/routers/pool.h"
#include "moe/routers/threshold.h"
#include "moe/routers/token_choice.h"

/* After 16 iterations from prices of 0, loads differ by a few percent; from the last step's prices, by less. */
enum { ITERATIONS = 16 };

/* Sets beta_i half-way between the k-th and the next best of margin[.,i]. With a price equal to the k-th best, tokens
 * would end up with equal margins at two experts, and rounding would decide. If prices cannot separate tokens, because
 * each expert may have all of them (k >= valid) or all rows are equal, op `price` makes all prices equal, and each
 * token gets its K best scores. */
static void sell(ch_exec *x, const ch_route_args *a, const real CH_DEV *margin, int valid, real CH_DEV *beta) {
  CH_SCRATCH(x);
  int e = a->e, k = ch_router_k(a->options->experts_per_token, valid, e), more = k < valid;
  ch_record assigned;
  ch_record_alloc(&x->scratch, &assigned, a->n, e, e * (k + 1));
  real CH_DEV *next = CH_NEW(&x->scratch, real, e);
  ch_select_best(x, a, margin, k, &assigned, beta);
  if (more) ch_select_best(x, a, margin, k + 1, &assigned, next);
  if (valid) CH_OP(x, price, .e = e, .next = more ? next : beta, .beta = beta);
}

/* Computes the prices of this batch, starting from beta. best: scratch for K + 1 choices per token. */
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

/* Whether training uses stored prices, so that a token's experts depend on no other token of the batch. */
static int by_kept(const ch_router_spec *o) { return o->estimator == CH_PRICES_LAST || o->estimator == CH_PRICES_MEAN; }

/* Number of tokens that are balanced together: a sequence, or all. */
static int span_of(const ch_route_args *a) {
  int T = a->sequence_length;
  return a->options->estimator == CH_PRICES_SEQUENCE && T > 0 && T < a->n ? T : a->n;
}

/* `count` tokens from `first` on as a separate routing, with scores in `part`. */
static ch_route_args cut(const ch_route_args *a, int first, int count, ch_routing *part) {
  ch_route_args own = *a;
  *part = *a->routing;
  part->scores += (int64_t)first * a->e;
  own.n = count;
  own.tokens.mask = a->tokens.mask ? a->tokens.mask + first : NULL;
  own.tokens.valid = a->tokens.valid ? a->tokens.valid + first : NULL;
  own.routing = part;
  return own;
}

/* Assigns every valid token to its top-K experts of S - beta. Prices are the stored ones (or 0); with `balances` they
 * are only the starting point for the prices of these tokens. */
static void choose_by_prices(ch_exec *x, const ch_route_args *a, int balances) {
  CH_SCRATCH(x);
  int K = a->options->experts_per_token, e = a->e, counts = ch_counting(x), span = balances ? span_of(a) : a->n;
  int runs = (a->n + span_of(a) - 1) / span_of(a), own = balances && !a->by_threshold;
  if (a->training && by_kept(a->options)) own = 0;
  ch_choices c = ch_choices_alloc(x, a, K), best = ch_choices_alloc(x, a, K + 1);
  real CH_DEV *kept = CH_NEW(&x->scratch, real, e), *prices = CH_NEW(&x->scratch, real, (int64_t)runs * e);
  CH_OP(x, copy, .count = e, .x = a->router_state.thresholds, .y = kept);
  for (int first = 0, run = 0; first < a->n && !(counts && run); first += span, run++) {
    ch_routing scores;
    ch_route_args part = cut(a, first, counts || span > a->n - first ? a->n - first : span, &scores);
    real CH_DEV *beta = prices + (int64_t)run * e;
    ch_choices chosen = {K, c.choice + (int64_t)first * K, c.value + (int64_t)first * K};
    CH_OP(x, copy, .count = e, .x = kept, .y = beta);
    if (K == e)
      CH_OP(x, price, .e = e, .beta = beta);
    else if (balances || counts)
      balance(x, &part, &best, beta);
    ch_choices_best(x, &part, part.routing->scores, own ? beta : kept, &chosen);
  }
  CH_OP(x, mean_cutoff, .pools = balances ? runs : 1, .e = e, .cutoff = prices, .mean = a->routing->counts.cutoff);
  ch_choices_place(x, a, &c, 0);
  ch_router_gates_from_scores(x, a);
}

/* Outside training a batch is balanced only if its prices will be stored (choir_calibrate). */
static void route_quantile_balanced(ch_exec *x, const ch_route_args *a) {
  choose_by_prices(x, a, a->training || a->router_state.updated);
}

static void causal(ch_exec *x, const ch_route_args *a) { choose_by_prices(x, a, 0); }

/* Stores the prices of the batch in place of the old ones; calibration uses many batches. */
static void observe_prices(ch_exec *x, const ch_route_args *a) {
  if (!a->training || a->options->estimator != CH_PRICES_LAST)
    ch_router_observe_cutoffs(x, a);
  else
    CH_OP(x, running_mean, .count = a->e, .fresh = !a->router_state.observed, .weight = 1,
          .value = a->routing->counts.cutoff, .mean = a->router_state.updated);
}

static choir_depends_on depends_on_with(const ch_router_spec *o, int training) {
  (void)training;
  return by_kept(o) ? CHOIR_DEPENDS_ON_NONE : CHOIR_DEPENDS_ON_ALL_IN_TRAINING;
}

static int check(const ch_router_spec *o, int n, int e, int sequence_length) {
  if (o->threshold_after && by_kept(o))
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "router '%s': threshold_after is %lld with estimator '%s', which goes by kept prices from the first "
        "step on: set threshold_after to 0",
        o->kind->name, (long long)o->threshold_after, ch_router_estimators[o->estimator]);
  return ch_token_choice_check(o, n, e, sequence_length);
}

const ch_router ch_router_quantile_balanced = {
    .name = "quantile_balanced",
    .summary = "each token selects its K experts of highest score minus price; the prices balance the loads",
    .reads = CHOIR_READS_SCORES,
    .depends_on = CHOIR_DEPENDS_ON_ALL_IN_TRAINING,
    .gates = CHOIR_GATES_SCORE,
    .depends_on_with = depends_on_with,
    .takes = {.experts_per_token = 1, .decay = 1, .threshold_after = 1, .estimator = 1},
    .defaults = {.experts_per_token = 2, .capacity_factor = 1},
    .check = check,
    .max_slots = ch_token_choice_slots,
    .route = route_quantile_balanced,
    .causal = causal,
    .observe = observe_prices,
    .backward = ch_router_gates_backward,
};
