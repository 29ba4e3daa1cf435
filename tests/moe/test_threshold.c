/* Routing by thresholds against naive loops, and the layer where thresholds let more tokens through than there is room
 * for at once. */
#include "moe/routers/threshold.h"
#include "naive_layer.h"

enum { N = 150, E = 7, D = 16, H = 24 };

/* An expert may have to do with ties, scores that are no numbers, thresholds that nobody or everybody passes. */
static void make_scores(real *score, real *threshold, int kind) {
  ch_rng r = ch_rng_make(3, CH_STREAM_TEST, 40 + (uint32_t)kind);
  for (int j = 0; j < N * E; j++) {
    double u = ch_rng_uniform(r, (uint64_t)j);
    score[j] = (real)(kind & 1 ? floor(u * 8) / 8 : u);
    if (kind & 2 && j % 11 == 3) score[j] = (real)NAN;
  }
  for (int i = 0; i < E; i++) threshold[i] = (real)(kind & 1 ? 0.5 : 0.3 + 0.08 * i);
  if (kind & 4) {
    threshold[1] = (real)INFINITY;
    threshold[2] = -1;
    threshold[5] = (real)NAN;
  }
}

/* The experts of one token: those that it passes, best margin first, of equal ones the lower expert; cut after the cap.
 */
static void naive_choose(const real *score, const real *threshold, int cap, double *gate) {
  int order[E], passed = 0;
  for (int i = 0; i < E; i++) gate[i] = 0;
  for (int i = 0; i < E; i++)
    if (score[i] >= threshold[i]) order[passed++] = i;
  for (int taken = 0; taken < passed && (cap == 0 || taken < cap); taken++) {
    int best = -1;
    for (int j = 0; j < passed; j++)
      if (order[j] >= 0 &&
          (best < 0 || score[order[j]] - threshold[order[j]] > score[order[best]] - threshold[order[best]]))
        best = j;
    gate[order[best]] = (double)score[order[best]];
    order[best] = -1;
  }
}

/* Bytes of 0xff: NaN as a number, -1 as an index. */
static void poison_planned(ch_exec *x) {
  memset(x->tape.base, 0xff, x->tape.peak);
  memset(x->scratch.base, 0xff, x->scratch.peak);
}

typedef struct {
  ch_record record;
  ch_route_counts counts;
} routed;

static routed route(const real *score, const real *threshold, int cap, const uint8_t *valid, int threads) {
  ch_router_spec options = router_options("expert_choice");
  routed out = {0};
  options.cap = cap;
  TEST_EXEC("reference", CH_COMPUTE_FP32, threads, {
    ch_routing r = {.scores = (real *)(uintptr_t)score};
    if (pass_) poison_planned(&x);
    ch_routing_new(&x, &x.tape, &r, N, E, N * ch_router_max_experts(&options, E));
    r.counts.capacity = -1;
    ch_route_args a = {.tokens = {.mask = valid, .valid = valid}, .router_state.thresholds = threshold, .routing = &r};
    ch_route_args_set(&a, options.kind, &options, N, E, 0);
    ch_router_by_thresholds(&x, &a);
    x.ops->index(&x, &(ch_index_args){.record = &r.record});
    if (pass_) keep_record(&out.record, &out.counts, &r.record, &r.counts);
    x.tape.used = 0;
  });
  return out;
}

static void routed_free(routed *r) {
  record_free(&r->record);
  counts_free(&r->counts);
}

static void check_against_naive(const routed *r, const real *score, const real *threshold, int cap,
                                const uint8_t *valid) {
  static double gate[N * E];
  double want[E];
  int load[E] = {0}, count = 0;
  record_gates(&r->record, gate);
  for (int t = 0; t < N; t++) {
    naive_choose(score + t * E, threshold, cap, want);
    for (int i = 0; i < E; i++) {
      if (valid && !valid[t]) want[i] = 0;
      if (!(gate[t * E + i] == want[i])) fail_msg("token %d, expert %d: %g, not %g", t, i, gate[t * E + i], want[i]);
    }
    count += !valid || valid[t];
  }
  for (int i = 0; i < E; i++)
    for (int s = r->record.expert_begin[i]; s < r->record.expert_begin[i + 1]; s++, load[i]++)
      assert_true(s == r->record.expert_begin[i] || r->record.slot_token[s] > r->record.slot_token[s - 1]);
  assert_memory_equal(load, r->counts.demand, sizeof load);
  assert_int_equal(r->counts.capacity, count);
  assert_int_equal(*r->counts.dropped, 0);
  assert_true(*r->counts.aux_loss == 0);
}

/* Under every cap, with ties, NaN and padding; and the same for one, two and three threads. */
static void equals_naive_loops(void **state) {
  static real score[N * E];
  real threshold[E];
  uint8_t mask[N];
  for (int t = 0; t < N; t++) mask[t] = t % 7 != 2;
  for (int kind = 0; kind < 8; kind++)
    for (int cap = 0; cap <= E; cap++)
      for (int padded = 0; padded < 2; padded++) {
        const uint8_t *valid = padded ? mask : NULL;
        make_scores(score, threshold, kind);
        routed one = route(score, threshold, cap, valid, 1);
        check_against_naive(&one, score, threshold, cap, valid);
        for (int threads = 2; threads < 4; threads++) {
          routed more = route(score, threshold, cap, valid, threads);
          assert_int_equal(ch_slots(&one.record), ch_slots(&more.record));
          assert_memory_equal(one.record.slot_token, more.record.slot_token,
                              sizeof(int) * (size_t)ch_slots(&one.record));
          assert_memory_equal(one.record.slot_gate, more.record.slot_gate,
                              sizeof(real) * (size_t)ch_slots(&one.record));
          routed_free(&more);
        }
        routed_free(&one);
      }
}

/* The mean of what was observed is that of the definition, from the first batch on; an expert without cut-off in a
 * batch keeps what it has. */
static void thresholds_are_means_of_cutoffs(void **state) {
  ch_router_spec options = router_options("expert_choice");
  const double decay = options.decay = 0.9;
  real kept[2] = {77, 77}, cutoff[2];
  double sum[2] = {0}, weight[2] = {0};
  for (int step = 0; step < 60; step++) {
    ch_routing seen = {.counts.cutoff = cutoff};
    for (int i = 0; i < 2; i++) {
      cutoff[i] = (real)ch_rng_uniform(ch_rng_make(3, CH_STREAM_TEST, 50), (uint64_t)(2 * step + i));
      sum[i] = decay * sum[i] + (1 - decay) * (double)cutoff[i];
      weight[i] = decay * weight[i] + (1 - decay);
    }
    TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
      ch_router_observe(&x, options.kind, &options, 2, &seen,
                        (ch_router_state){.updated = kept, .observed = (uint64_t)step});
    });
    for (int i = 0; i < 2; i++)
      if (!(fabs((double)kept[i] - sum[i] / weight[i]) < 1e-5)) fail_msg("step %d: %g", step, (double)kept[i]);
  }
}

/* Runs the layer by thresholds; record and counts are left in the case. */
static void run_causal(layer_case *c, const real *threshold) {
  ch_moe_args a = layer_args(c);
  ch_moe_saved saved;
  a.route.training = a.keep = 0;
  a.route.causal = 1;
  a.route.router_state.thresholds = threshold;
  TEST_EXEC(c->backend, CH_COMPUTE_FP32, c->threads, {
    if (pass_) {
      poison_planned(&x);
      test_poison(c->out, (int64_t)c->n * c->d);
    }
    ch_moe_forward(&x, &a, &saved);
    if (pass_) keep_record(&c->record, &c->counts, &saved.routing.record, &saved.routing.counts);
    x.tape.used = 0;
  });
}

static const char *const backends[] = {"reference", "cpu"};

/* Thresholds from those that every token passes to those that few do; room from one token's to all. */
static void parts_equal_naive_loops(void **state) {
  static const double level[] = {-1, 0.05, 1.0 / E, 0.4};
  for (int backend = 0; backend < 2; backend++)
    for (size_t l = 0; l < sizeof level / sizeof *level; l++)
      for (int cap = 0; cap < 4; cap += 2) {
        layer_case c = layer_case_new("expert_choice", N, D, H, E);
        real threshold[E], score[E], *want = test_new(N * D);
        double gate[E];
        c.backend = backends[backend];
        c.options.cap = cap;
        c.options.capacity_factor = 0.5;
        for (int i = 0; i < E; i++) threshold[i] = (real)(level[l] * (1 + 0.02 * i));
        for (int t = 0; t < N; t++) {
          naive_scores(&c, t, score);
          naive_choose(score, threshold, cap, gate);
          for (int i = 0; i < E; i++)
            if (gate[i] > 0) naive_expert(&c, t, i, gate[i], want + t * D);
        }
        run_causal(&c, threshold);
        test_close(c.out, want, N * D, 2e-6);
        if (level[l] < 0) assert_int_equal(ch_slots(&c.record), N * (cap ? cap : E));
        free(want);
        layer_case_free(&c);
      }
}

/* Where the reference rounds every row alike, the room makes no difference, nor do threads. */
static void results_do_not_depend_on_the_room(void **state) {
  real threshold[E], *first = NULL;
  for (int i = 0; i < E; i++) threshold[i] = (real)0.02;
  static const double factor[] = {E, 3, 1, 0.3, 0.05};
  for (size_t f = 0; f < sizeof factor / sizeof *factor; f++) {
    layer_case c = layer_case_new("expert_choice", N, D, H, E);
    c.options.capacity_factor = factor[f];
    c.threads = 1 + (int)f % 3;
    run_causal(&c, threshold);
    if (!first) first = copy_of(c.out, sizeof(real) * N * D);
    assert_memory_equal(c.out, first, sizeof(real) * N * D);
    layer_case_free(&c);
  }
  free(first);
}

TEST_MAIN(NULL, NULL, equals_naive_loops, thresholds_are_means_of_cutoffs, parts_equal_naive_loops,
          results_do_not_depend_on_the_room)
