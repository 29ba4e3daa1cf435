/* Laws of quantile_balanced, random, kmeans and global_topk beyond what test_routers asks of every router. */
#include "moe_testing.h"

static int32_t ids[2048];

static layer_case make(const char *router, int n, int e) {
  layer_case c = choice_case(router, n, e);
  for (int t = 0; t < 2048; t++) ids[t] = t * t % 499;
  c.seed = 5;
  c.token = ids;
  return c;
}

/* Softmax of normal logits, expert i ahead by i times `skew`. */
static void skewed_scores(layer_case *c, double skew) {
  test_normal(c->scores, (int64_t)c->n * c->e, 4);
  for (int t = 0; t < c->n; t++) {
    double sum = 0;
    real *row = c->scores + (int64_t)t * c->e;
    for (int i = 0; i < c->e; i++) sum += exp((double)row[i] + skew * i);
    for (int i = 0; i < c->e; i++) row[i] = (real)(exp((double)row[i] + skew * i) / sum);
  }
}

static int load_of(const layer_case *c, int i) { return c->record.expert_begin[i + 1] - c->record.expert_begin[i]; }

/* Loads within 10 % of n K / e, where the K best scores alone would leave experts empty. */
static void prices_balance_loads(void **state) {
  for (int K = 1; K <= 4; K *= 2) {
    layer_case c = make("quantile_balanced", 2048, 16);
    skewed_scores(&c, 0.3);
    c.options.experts_per_token = K;
    double even = 2048.0 * K / 16;
    c.training = 0; /* no prices kept: the K best scores */
    router_run(&c, NULL);
    assert_true(load_of(&c, 15) > 2 * even && load_of(&c, 0) < even / 4);
    c.training = 1;
    router_run(&c, NULL);
    assert_int_equal(ch_slots(&c.record), 2048 * K);
    assert_int_equal(*c.counts.dropped, 0);
    for (int i = 0; i < 16; i++)
      if (!(fabs(load_of(&c, i) / even - 1) < 0.1))
        fail_msg("K %d: expert %d has %d of %g", K, i, load_of(&c, i), even);
    layer_case_free(&c);
  }
}

/* Step by step prices even out the loads, and a run that begins with them keeps them; the gates stay the scores. */
static void bias_balances_loads_in_steps(void **state) {
  layer_case c = make("bias_balanced", 2048, 16);
  ch_exec x;
  real prices[16] = {0}, before[16];
  const ch_router *router = ch_router_find("bias_balanced");
  ch_routing seen = {0};
  const double even = 2048.0 * 2 / 16;
  skewed_scores(&c, 0.3);
  test_ok(ch_exec_init(&x, test_backend(c.backend), c.compute, 1, c.threads));
  test_ok(ch_exec_commit(&x));
  c.thresholds = prices;
  for (uint64_t step = 0; step < 600; step++) {
    router_run(&c, NULL);
    if (!step) assert_true(load_of(&c, 15) > 2 * even && load_of(&c, 0) < even / 4);
    seen.counts = c.counts;
    ch_router_observe(&x, router, &c.options, 16, &seen, (ch_router_state){.updated = prices, .observed = step});
  }
  for (int i = 0; i < 16; i++)
    if (!(fabs(load_of(&c, i) / even - 1) < 0.2)) fail_msg("expert %d has %d of %g", i, load_of(&c, i), even);
  for (int i = 0; i < 16; i++)
    for (int s = c.record.expert_begin[i]; s < c.record.expert_begin[i + 1]; s++)
      assert_true(c.record.slot_gate[s] == c.scores[c.record.slot_token[s] * 16 + i]);
  assert_int_equal(ch_slots(&c.record), 2048 * 2);
  memcpy(before, prices, sizeof before);
  ch_router_observe(&x, router, &c.options, 16, &seen, (ch_router_state){.thresholds = prices, .updated = prices});
  for (int i = 0; i < 16; i++) assert_true(fabs((double)(prices[i] - before[i])) <= 1.001 * c.options.bias_rate);
  ch_exec_free(&x);
  layer_case_free(&c);
}

/* With the batch's own prices kept, the other ways to route choose as training did; their mean is 1/e. */
static void kept_prices_repeat_the_choice(void **state) {
  layer_case c = make("quantile_balanced", 512, 8);
  skewed_scores(&c, 0.5);
  router_run(&c, NULL);
  ch_record trained = {0};
  ch_route_counts counts = {0};
  real prices[8];
  double sum = 0;
  keep_record(&trained, &counts, &c.record, &c.counts);
  memcpy(prices, c.counts.cutoff, sizeof prices);
  for (int i = 0; i < 8; i++) sum += (double)prices[i];
  assert_true(fabs(sum - 1) < 1e-5);
  c.thresholds = prices;
  for (c.causal = 0; c.causal < 2; c.causal++) {
    c.training = c.causal;
    router_run(&c, NULL);
    assert_true(same_selection(&c, &trained, counts.demand));
  }
  record_free(&trained);
  counts_free(&counts);
  layer_case_free(&c);
}

/* K = e: everybody everywhere; one expert; equal rows, which no price can tell apart. */
static void quantile_extremes(void **state) {
  for (int e = 1; e <= 8; e += 7) {
    layer_case c = make("quantile_balanced", 64, e);
    skewed_scores(&c, 0.5);
    c.options.experts_per_token = e;
    router_run(&c, NULL);
    assert_int_equal(ch_slots(&c.record), 64 * e);
    for (int i = 0; i < e; i++) assert_true(c.counts.cutoff[i] == (real)1 / (real)e);
    c.options.experts_per_token = e > 1 ? 3 : 1;
    for (int j = 0; j < 64 * e; j++) c.scores[j] = (real)(j % e + 1);
    router_run(&c, NULL);
    assert_int_equal(ch_slots(&c.record), 64 * c.options.experts_per_token);
    for (int i = 0; i < e; i++) assert_true(isfinite(c.counts.cutoff[i]));
    layer_case_free(&c);
  }
}

/* One valid token, or two whose rows are equal, or as few as an expert's share: prices tell nothing apart, and their K
 * best scores are taken, of equal ones the lower expert. In training, where every price would leave all experts tied.
 */
static void quantile_of_few_tokens(void **state) {
  enum { E = 8, K = 2 };
  for (int n = 1; n <= 64; n = n == 1 ? 2 : 32 * n) {
    layer_case c = make("quantile_balanced", n, E);
    c.options.experts_per_token = K;
    for (uint64_t draw = 0; draw < 50; draw++) {
      ch_rng rng = ch_rng_make(5, CH_STREAM_TEST, (uint32_t)draw);
      real row[E];
      int best[K] = {0, 0};
      for (int i = 0; i < E; i++) row[i] = (real)(1 + ch_rng_below(rng, (uint64_t)i, 1000)) / 3001;
      if (draw % 2) row[5] = row[2]; /* ties */
      for (int j = 0; j < n * E; j++) c.scores[j] = row[j % E];
      for (int i = 1; i < E; i++)
        if (row[i] > row[best[0]]) best[0] = i;
      best[1] = !best[0];
      for (int i = 0; i < E; i++)
        if (i != best[0] && row[i] > row[best[1]]) best[1] = i;
      router_run(&c, NULL);
      for (int i = 0; i < E; i++) {
        assert_int_equal(load_of(&c, i), i == best[0] || i == best[1] ? n : 0);
        assert_true(c.counts.cutoff[i] == (real)1 / E);
      }
    }
    layer_case_free(&c);
  }
}

/* Every expert is as likely; draws differ from step to step in training, and go by id alone elsewhere. */
static void draws_are_even(void **state) {
  int total[8] = {0}, first = -1;
  layer_case c = make("random", 2048, 8);
  c.options.experts_per_token = 3;
  for (int step = 0; step < 4; step++) {
    c.rng_base = (uint64_t)step * 2048;
    router_run(&c, NULL);
    assert_int_equal(ch_slots(&c.record), 3 * 2048);
    for (int i = 0; i < 8; i++) total[i] += load_of(&c, i);
    if (step) assert_true(load_of(&c, 0) != first || load_of(&c, 1) != first);
    first = load_of(&c, 0);
  }
  for (int i = 0; i < 8; i++) assert_true(abs(total[i] - 3072) < 220); /* five standard deviations */
  layer_case_free(&c);
}

static void elsewhere_draws_go_by_id(void **state) {
  static double one[2048 * 8], other[2048 * 8];
  layer_case c = make("random", 2048, 8);
  c.training = 0;
  router_run(&c, NULL);
  record_gates(&c.record, one);
  c.rng_base = 77;
  c.seed = 99;
  c.causal = 1;
  c.token = ids + 8; /* other neighbours */
  c.n = 1024;
  router_run(&c, NULL);
  record_gates(&c.record, other);
  for (int j = 0; j < 1024 * 8; j++) assert_true(other[j] == one[64 + j] && (one[64 + j] == 0 || one[64 + j] == 0.5));
  int differ = 0;
  for (int t = 1; t < 100; t++) differ += memcmp(one, one + 8 * t, 8 * sizeof *one) != 0;
  assert_true(differ > 50);
  layer_case_free(&c);
}

/* Without a cap on tokens, taking what reaches the cut-offs is taking the same pairs; no expert is over its room. */
static void cutoffs_repeat_the_selection(void **state) {
  layer_case c = make("global_topk", 512, 8);
  skewed_scores(&c, 0.6);
  c.options.capacity_factor = 1.5;
  router_run(&c, NULL);
  assert_int_equal(ch_slots(&c.record), 768);
  assert_int_equal(c.counts.capacity, 192);
  assert_int_equal(load_of(&c, 7), 192);
  assert_true(*c.counts.dropped > 0 && load_of(&c, 0) < 96);
  ch_record trained = {0};
  ch_route_counts counts = {0};
  keep_record(&trained, &counts, &c.record, &c.counts);
  c.thresholds = counts.cutoff;
  c.causal = 1;
  router_run(&c, NULL);
  for (int i = 0; i < 8; i++) counts.demand[i] = c.counts.demand[i]; /* counted otherwise */
  assert_true(same_selection(&c, &trained, counts.demand));
  record_free(&trained);
  counts_free(&counts);
  layer_case_free(&c);
}

/* c = e takes every pair; a cap of 1 is one expert a token at most. */
static void global_extremes(void **state) {
  layer_case c = make("global_topk", 100, 5);
  skewed_scores(&c, 0.5);
  c.options.capacity_factor = 5;
  router_run(&c, NULL);
  assert_int_equal(ch_slots(&c.record), 500);
  c.options.cap = 1;
  router_run(&c, NULL);
  assert_int_equal(ch_slots(&c.record), 100);
  for (int t = 0; t < 100; t++) assert_int_equal(c.record.token_begin[t + 1] - c.record.token_begin[t], 1);
  layer_case_free(&c);
}

enum { CLUSTERS = 6, D = 12, TOKENS = 300 };

/* Tokens about planted points; a call of the layer that also observes. */
static void learn(layer_case *c, uint64_t observed) {
  ch_exec x;
  ch_moe_saved saved;
  ch_moe_args a = layer_args(c);
  a.route.router_state.updated = c->router;
  a.route.router_state.observed = observed;
  test_ok(ch_exec_init(&x, c->backend, CH_COMPUTE_FP32, 1, c->threads));
  for (int pass = 0; pass < 2; pass++) {
    if (pass) {
      test_ok(ch_exec_commit(&x));
      poison_arenas(&x);
    }
    ch_moe_forward(&x, &a, &saved);
    if (pass) keep_record(&c->record, &c->counts, &saved.routing.record, &saved.routing.counts);
    x.tape.used = 0;
  }
  ch_exec_free(&x);
}

/* From centroids that all stand on one spot, k-means finds every cluster, and the centroid is the cluster's mean; the
 * same bits on any number of threads. */
static void centroids_find_the_clusters(void **state) {
  real *found[3];
  for (int threads = 1; threads <= 3; threads++) {
    layer_case c = layer_case_new("kmeans", TOKENS, D, 4, CLUSTERS);
    real *centre = test_new_normal(CLUSTERS * D, 9);
    c.threads = threads;
    c.options.decay = 0.5;
    memset(c.router, 0, D * CLUSTERS * sizeof *c.router);
    for (int t = 0; t < TOKENS; t++)
      for (int j = 0; j < D; j++) c.x[t * D + j] = 3 * centre[t % 7 % CLUSTERS * D + j] + (real)0.1 * c.x[t * D + j];
    for (uint64_t step = 0; step < 40; step++) {
      learn(&c, step);
      for (int i = 0; i < CLUSTERS && step; i++) assert_true(load_of(&c, i) > 0); /* started again apart */
    }
    for (int i = 0; i < CLUSTERS; i++) {
      int begin = c.record.expert_begin[i], cluster = c.record.slot_token[begin], size = load_of(&c, i);
      cluster = cluster % 7 % CLUSTERS;
      double mean[D] = {0};
      int planted = 0;
      for (int t = 0; t < TOKENS; t++) planted += t % 7 % CLUSTERS == cluster;
      assert_int_equal(size, planted);
      for (int s = begin; s < begin + size; s++) {
        int t = c.record.slot_token[s];
        assert_int_equal(t % 7 % CLUSTERS, cluster);
        for (int j = 0; j < D; j++) mean[j] += (double)c.x[t * D + j] / size;
      }
      for (int j = 0; j < D; j++) assert_true(fabs((double)c.router[j * CLUSTERS + i] - mean[j]) < 1e-4);
    }
    found[threads - 1] = copy_of(c.router, D * CLUSTERS * sizeof *c.router);
    free(centre);
    layer_case_free(&c);
  }
  for (int i = 1; i < 3; i++) assert_memory_equal(found[0], found[i], D * CLUSTERS * sizeof *found[0]);
  for (int i = 0; i < 3; i++) free(found[i]);
}

/* Equal tokens cannot be told apart: one expert has them all, and no centroid becomes a NaN. */
static void equal_tokens_share_a_centroid(void **state) {
  layer_case c = layer_case_new("kmeans", 20, D, 4, 3);
  for (int i = 0; i < 20 * D; i++) c.x[i] = c.x[i % D];
  for (uint64_t step = 0; step < 3; step++) learn(&c, step);
  int max = 0;
  for (int i = 0; i < 3; i++) max = load_of(&c, i) > max ? load_of(&c, i) : max;
  assert_int_equal(max, 20);
  for (int i = 0; i < D * 3; i++) assert_true(isfinite(c.router[i]));
  layer_case_free(&c);
}

TEST_MAIN(NULL, NULL, prices_balance_loads, bias_balances_loads_in_steps, kept_prices_repeat_the_choice,
          quantile_extremes, quantile_of_few_tokens, draws_are_even, elsewhere_draws_go_by_id,
          cutoffs_repeat_the_selection, global_extremes, centroids_find_the_clusters, equal_tokens_share_a_centroid)
