/* GShard top-2 (Lepikhin et al. 2020): each token asks its two best experts; all first choices are placed before the
 * second ones, in token order, up to capacity. Gates are g1/(g1+g2) and g2/(g1+g2), whether or not both find room. */
#include "moe/routers/token_choice.h"

static int check(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  return ch_token_choice_check(o, 2, n, e);
}

static int max_slots(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  return ch_token_choice_max_slots(o, 2, n, e);
}

/* Gates of both choices. In training with random_second, the second one stays with probability 2 g2 (at most 1: g2 is
 * the smaller share); one that does not asks for no room. */
static void weigh(ch_exec *x, const ch_route_args *a, ch_choices *c) {
  int sample = a->training && a->options->random_second;
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->n; t++) {
    int *expert = c->expert + 2 * (int64_t)t;
    if (expert[0] < 0) continue;
    const real *score = a->scores + (int64_t)t * a->e;
    real first = score[expert[0]], second = score[expert[1]], sum = first + second;
    if (sum == 0) sum = 1; /* both 0, which no softmax gives */
    c->gate[2 * (int64_t)t] = first / sum;
    c->gate[2 * (int64_t)t + 1] = second / sum;
    if (sample && !(ch_rng_uniform(a->rng, a->rng_base + (uint64_t)t) < 2 * (double)(second / sum))) expert[1] = -1;
  }
}

/* With room for `factor` times an even share in every expert; 0: for all. */
static void place(ch_exec *x, const ch_route_args *a, double factor) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_choices c = ch_choices_alloc(x, a, 2);
  if (!ch_counting(x)) {
    int valid = ch_valid_count(a->valid, a->n);
    ch_choices_best(x, a, &c);
    a->counts->aux_loss = ch_balance_loss(a, &c);
    weigh(x, a, &c);
    ch_choices_place(a, &c, factor > 0 ? ch_router_capacity(factor, 2, valid, a->e) : valid);
  }
  ch_arena_release(&x->scratch, mark);
}

static void route(ch_exec *x, const ch_route_args *a) { place(x, a, ch_router_factor(a->options, a->training)); }

static void causal(ch_exec *x, const ch_route_args *a) { place(x, a, 0); }

/* d(g1/(g1+g2)) = g2 dg1 / (g1+g2)^2 and so on; a choice that holds no slot has gradient 0. */
static void backward(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_choices c = ch_choices_alloc(x, a, 2);
  if (!ch_counting(x)) {
    ch_choices_best(x, a, &c);
    ch_router_gates_backward(x, a);
#pragma omp parallel for num_threads(x->threads)
    for (int t = 0; t < a->n; t++) {
      const int *expert = c.expert + 2 * (int64_t)t;
      if (expert[0] < 0) continue;
      const real *score = a->scores + (int64_t)t * a->e;
      real *dscore = a->dscores + (int64_t)t * a->e;
      real first = score[expert[0]], second = score[expert[1]], sum = first + second;
      real slope = (dscore[expert[0]] - dscore[expert[1]]) / (sum * sum);
      dscore[expert[0]] = second * slope;
      dscore[expert[1]] = -first * slope;
    }
    ch_balance_loss_backward(x, a, &c);
  }
  ch_arena_release(&x->scratch, mark);
}

const ch_router ch_router_gshard_top2 = {
    .name = "gshard_top2",
    .summary = "each token asks its two best experts, first choices go first (Lepikhin et al. 2020)",
    .reads = CH_READS_SHARES,
    .looks = CH_LOOKS_AROUND,
    .options = CH_ROUTER_TAKES(normalize_gates) | CH_ROUTER_TAKES_CAPACITY | CH_ROUTER_TAKES(aux_loss_weight) |
               CH_ROUTER_TAKES(random_second),
    .choices = 2,
    .defaults = {CH_ROUTER_DEFAULTS("gshard_top2"), .capacity_factor = 1, .aux_loss_weight = 0.01},
    .check = check,
    .max_slots = max_slots,
    .route = route,
    .causal = causal,
    .backward = backward,
};
