/* Random experts (THOR, Zuo et al. 2022): K experts a token, drawn without replacement, gate 1/K, nothing learned.
 * Training draws anew for every token; elsewhere the draw is a function of the token's id, so that a token alone meets
 * the same experts as in a batch. */
#include "base/error.h"
#include "moe/routers/token_choice.h"

static int check(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  return ch_token_choice_check(o, o->experts_per_token, n, e);
}

static int max_slots(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)e, (void)sequence_length;
  return n * o->experts_per_token;
}

/* K different experts out of e, ascending, from numbers index K .. index K + K-1 of a stream: the j-th number counts
 * among those not drawn before. */
static void draw(ch_rng rng, uint64_t index, int K, int e, int *expert) {
  for (int j = 0; j < K; j++) {
    int drawn = (int)ch_rng_below(rng, index * (uint64_t)K + (uint64_t)j, (uint64_t)(e - j)), at = 0;
    for (; at < j && drawn >= expert[at]; at++) drawn++;
    for (int i = j; i > at; i--) expert[i] = expert[i - 1];
    expert[at] = drawn;
  }
}

static void run(ch_exec *x, const ch_route_args *a, int training) {
  size_t mark = ch_arena_mark(&x->scratch);
  int K = a->options->experts_per_token;
  ch_choices c = ch_choices_alloc(x, a, K);
  if (!ch_counting(x)) {
    ch_rng fixed = ch_rng_make(0, CH_STREAM_SECOND_EXPERT, a->rng.sub);
#pragma omp parallel for num_threads(x->threads)
    for (int t = 0; t < a->n; t++) {
      int *expert = c.expert + (int64_t)t * K;
      if (training)
        draw(a->rng, a->rng_base + (uint64_t)t, K, a->e, expert);
      else
        draw(fixed, (uint64_t)a->token[t], K, a->e, expert);
      for (int j = 0; j < K; j++) {
        if (a->valid && !a->valid[t]) expert[j] = -1;
        c.gate[(int64_t)t * K + j] = (real)(1.0 / K);
      }
    }
    a->counts->aux_loss = 0;
    ch_choices_place(a, &c, ch_valid_count(a->valid, a->n));
  }
  ch_arena_release(&x->scratch, mark);
}

static void route(ch_exec *x, const ch_route_args *a) { run(x, a, a->training); }

static void causal(ch_exec *x, const ch_route_args *a) { run(x, a, 0); }

const ch_router ch_router_random = {
    .name = "random",
    .summary = "K experts a token, drawn (Zuo et al. 2022)",
    .reads = CH_READS_IDS,
    .options = CH_ROUTER_TAKES(experts_per_token) | CH_ROUTER_TAKES(consistency_weight),
    .defaults = {CH_ROUTER_DEFAULTS_K("random", 2), .capacity_factor = 1},
    .check = check,
    .max_slots = max_slots,
    .route = route,
    .causal = causal,
};
