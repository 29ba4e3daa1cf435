/* Quantile balancing: every token takes its K best experts of S - beta, and beta, a price per expert, is what makes
 * about n K / e tokens take each. No token is dropped and no auxiliary loss is needed; the gate is the raw score.
 *
 * Prices are the multipliers of "every expert takes n K / e" in the linear programme of docs/design.md with the row
 * rule "K per token". Each of its two blocks has a minimum in closed form, and they alternate: alpha_t, between the
 * K-th and the next best of S[t] - beta, and beta_i, between the (n K / e)-th and the next best of S[.,i] - alpha. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "moe/routers/token_choice.h"

enum { ITERATIONS = 16 }; /* loads within a few per cent of each other from 0, nearer from last step's prices */

static int check(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  return ch_token_choice_check(o, o->experts_per_token, n, e);
}

static int max_slots(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)e, (void)sequence_length;
  return n * o->experts_per_token;
}

/* The `count` best of S[t] - beta, best first, of equal ones the lower expert. Row of NaN: experts 0, 1, ... */
static void best_of(const ch_route_args *a, int t, const real *beta, int count, int *expert, real *value) {
  const real *score = a->scores + (int64_t)t * a->e;
  int have = 0;
  for (int i = 0; i < a->e; i++) {
    real margin = score[i] - beta[i];
    if (have == count && !(margin > value[count - 1])) continue;
    int at = have < count ? have++ : count - 1;
    for (; at > 0 && margin > value[at - 1]; at--) {
      value[at] = value[at - 1];
      expert[at] = expert[at - 1];
    }
    value[at] = margin;
    expert[at] = i;
  }
}

/* beta, shifted: choices do not see a shift, but a running mean would. */
static void centre(real *beta, int e) {
  double sum = 0;
  for (int i = 0; i < e; i++) sum += (double)beta[i];
  for (int i = 0; i < e; i++) beta[i] = (real)((double)beta[i] - (sum - 1) / e);
}

/* margin = S - alpha, alpha_t half-way between the K-th and the next best of S[t] - beta. best, value: [n,K+1] room. */
static void bid(ch_exec *x, const ch_route_args *a, const real *beta, int *best, real *value, real *margin) {
  int K = a->options->experts_per_token;
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->n; t++) {
    int64_t mine = (int64_t)t * (K + 1), row = (int64_t)t * a->e;
    best_of(a, t, beta, K + 1, best + mine, value + mine);
    real alpha = (value[mine + K - 1] + value[mine + K]) / 2;
    for (int i = 0; i < a->e; i++) margin[row + i] = a->scores[row + i] - alpha;
  }
}

/* beta_i: half-way between the k-th and the next best of margin[.,i]. A price equal to the k-th, or an alpha equal to a
 * K-th best, would in the end leave tokens undecided between two experts, and rounding would decide. */
static void sell(ch_exec *x, const ch_route_args *a, const real *margin, int valid, real *beta) {
  size_t mark = ch_arena_mark(&x->scratch);
  int n = a->n, e = a->e, begin[] = {0, n}, k = ch_router_k(a->options->experts_per_token, valid, e);
  ch_record taken;
  ch_record_alloc(&x->scratch, &taken, n, e, e * (k + 1));
  real *next = CH_NEW(&x->scratch, real, e);
  ch_select_args select = {
      .pools = 1, .pool_begin = begin, .k = &k, .valid = a->valid, .score = margin, .record = &taken, .cutoff = beta};
  x->ops->select(x, &select);
  if (!ch_counting(x) && ++k <= valid) {
    select.cutoff = next;
    x->ops->select(x, &select);
    for (int i = 0; i < e; i++) beta[i] = (beta[i] + next[i]) / 2;
  }
  if (!ch_counting(x) && valid) centre(beta, e); /* nobody: prices of +infinity */
  ch_arena_release(&x->scratch, mark);
}

/* Prices of this batch, from those in beta on. best, value: [n,K+1] room. */
static void balance(ch_exec *x, const ch_route_args *a, int *best, real *value, real *beta) {
  size_t mark = ch_arena_mark(&x->scratch);
  real *margin = CH_NEW(&x->scratch, real, (int64_t)a->n * a->e);
  if (ch_counting(x)) sell(x, a, margin, a->n, beta);
  int valid = ch_counting(x) ? 0 : ch_valid_count(a->valid, a->n);
  for (int round = 0; round < ITERATIONS && !ch_counting(x); round++) {
    bid(x, a, beta, best, value, margin);
    sell(x, a, margin, valid, beta);
  }
  ch_arena_release(&x->scratch, mark);
}

/* Every valid token to its K best of S - beta. */
static void choose(ch_exec *x, const ch_route_args *a, const real *beta, ch_choices *c, real *value) {
  int K = c->per_token;
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->n; t++) {
    int *expert = c->expert + (int64_t)t * K;
    best_of(a, t, beta, K, expert, value + (int64_t)t * K);
    for (int j = 0; j < K; j++) {
      if (a->valid && !a->valid[t]) expert[j] = -1;
      c->gate[(int64_t)t * K + j] = expert[j] < 0 ? 0 : a->scores[(int64_t)t * a->e + expert[j]];
    }
  }
  a->counts->aux_loss = 0;
  ch_choices_place(a, c, ch_valid_count(a->valid, a->n));
}

/* The prices in force outside training, and where training starts from: the running mean, or 0. */
static void kept_prices(const ch_route_args *a, real *beta) {
  for (int i = 0; i < a->e; i++) beta[i] = a->thresholds ? a->thresholds[i] : 0;
}

static void run(ch_exec *x, const ch_route_args *a, int training) {
  size_t mark = ch_arena_mark(&x->scratch);
  int K = a->options->experts_per_token;
  ch_choices c = ch_choices_alloc(x, a, K);
  int *expert = CH_NEW(&x->scratch, int, (int64_t)a->n *(K + 1));
  real *value = CH_NEW(&x->scratch, real, (int64_t)a->n * (K + 1)), *kept = CH_NEW(&x->scratch, real, a->e);
  real *beta = a->counts->cutoff;
  if (!ch_counting(x)) {
    kept_prices(a, kept);
    memcpy(beta, kept, (size_t)a->e * sizeof *beta);
    if (K == a->e) centre(beta, a->e);
  }
  if (K < a->e && (training || ch_counting(x))) balance(x, a, expert, value, beta);
  if (!ch_counting(x)) choose(x, a, training && !a->by_threshold ? beta : kept, &c, value);
  ch_arena_release(&x->scratch, mark);
}

static void route(ch_exec *x, const ch_route_args *a) { run(x, a, a->training); }

static void causal(ch_exec *x, const ch_route_args *a) { run(x, a, 0); }

const ch_router ch_router_quantile_balanced = {
    .name = "quantile_balanced",
    .summary = "each token takes its K best experts at prices that balance their loads",
    .reads = CH_READS_SCORES,
    .looks = CH_LOOKS_IN_TRAINING,
    .options = CH_ROUTER_TAKES(normalize_gates) | CH_ROUTER_TAKES(experts_per_token) | CH_ROUTER_TAKES(decay) |
               CH_ROUTER_TAKES(threshold_after),
    .defaults = {CH_ROUTER_DEFAULTS_K("quantile_balanced", 2), .capacity_factor = 1},
    .check = check,
    .max_slots = max_slots,
    .route = route,
    .causal = causal,
    .observe = ch_router_observe_cutoffs,
    .backward = ch_router_gates_backward,
};
