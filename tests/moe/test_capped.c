/* capped_expert_choice and base as routers: refusals, options, padding, instruction sets, statistics. */
#include "model/config.h"
#include "moe/route_stats.h"
#include "moe_testing.h"

enum { N = 240, E = 8 };

static layer_case make(const char *router) {
  layer_case c = choice_case(router, N, E);
  test_normal(c.scores, N * E, 6);
  for (int j = 0; j < N * E; j++) c.scores[j] = (real)(1 / (1 + exp(-(double)c.scores[j])));
  return c;
}

static void refused(ch_router_spec o, const char *words) {
  int code = ch_options_check_router(&o);
  if (!code) code = o.kind->check(&o, N, E, 0);
  test_fails(code, CHOIR_ERROR_ARGUMENT, words);
}

static void refuses_by_name_and_value(void **state) {
  ch_router_spec good = router_options("capped_expert_choice"), o = good;
  test_ok(good.kind->check(&good, N, E, 0)); /* c = b: tight, and possible */
  o.cap = 1;
  refused(o,
          "8 experts that take 60 of 240 tokens each (capacity_factor 2) need 480 places, and a cap of 1 leaves 240");
  o.capacity_factor = 1;
  test_ok(o.kind->check(&o, N, E, 0));
  o.eval_capacity_factor = 1.5;
  refused(o, "need 360 places");
  o = good, o.cap = -1;
  refused(o, "cap is -1");
  o = good, o.solver_lambda = 0;
  refused(o, "solver_lambda is ");
  o = good, o.solver_iterations = 0;
  refused(o, "solver_iterations is ");
  o = good, o.solver = CH_SOLVER_DYKSTRA, o.solver_iterations = 3, o.solver_stages = 4;
  refused(o, "solver_stages is 4, and solver_iterations 3");
}

/* However few tokens are valid, every expert has as many as there is room for, and nobody is over the cap. */
static void padding_lowers_k(void **state) {
  layer_case c = make("capped_expert_choice");
  uint8_t valid[N];
  c.valid = valid;
  for (int left = 0; left <= N; left += left < 20 ? 1 : 20) {
    for (int t = 0; t < N; t++) valid[t] = t * 7 % N < left;
    router_run(&c, NULL);
    int k = ch_slots(&c.record) / E;
    assert_true(k <= 2 * left / E && k + 1 > 2 * left / E);
    for (int i = 0; i < E; i++) assert_int_equal(c.record.expert_begin[i + 1] - c.record.expert_begin[i], k);
    for (int t = 0; t < N; t++) assert_true(c.record.token_begin[t + 1] - c.record.token_begin[t] <= 2 * valid[t]);
    assert_int_equal(c.counts.certificate.over_cap, 0);
  }
  layer_case_free(&c);
}

/* `exact` and `base` choose alike on every instruction set and both backends. */
static void instruction_sets_choose_alike(void **state) {
  static const char *const routers[] = {"capped_expert_choice", "base"}, *const isas[] = {"generic", "avx2", "avx512"};
  for (int router = 0; router < 2; router++) {
    layer_case want = make(routers[router]);
    want.backend = "reference";
    router_run(&want, NULL);
    for (int isa = 0; isa < 3; isa++) {
      layer_case c = make(routers[router]);
      setenv("CHOIR_ISA", isas[isa], 1);
      router_run(&c, NULL);
      unsetenv("CHOIR_ISA");
      assert_true(same_selection(&c, &want.record, want.counts.demand));
      assert_memory_equal(c.record.slot_gate, want.record.slot_gate, sizeof(real) * (size_t)ch_slots(&c.record));
      assert_true(c.counts.certificate.gap == want.counts.certificate.gap);
      layer_case_free(&c);
    }
    layer_case_free(&want);
  }
}

/* Best b of S - beta above 0, token by token: the tokens of the batch that the prices were made for. */
static void duals_repeat_the_assignment(void **state) {
  layer_case c = make("capped_expert_choice");
  c.options.capacity_factor = 1; /* room to spare: not every token has two */
  router_run(&c, NULL);
  real prices[E];
  int slots = ch_slots(&c.record), same = 0;
  static double trained[N * E], causal[N * E];
  record_gates(&c.record, trained);
  memcpy(prices, c.counts.cutoff, sizeof prices);
  c.thresholds = prices;
  c.causal = 1;
  router_run(&c, NULL);
  record_gates(&c.record, causal);
  for (int j = 0; j < N * E; j++) same += trained[j] > 0 && causal[j] == trained[j];
  assert_true(abs(ch_slots(&c.record) - slots) <= 2 * E); /* tokens at a price, within rounding, fall on either side */
  assert_true(same >= slots - 2 * E);
  layer_case_free(&c);
}

/* Sums of counts, largest of the rest; what no solver routed changes nothing. */
static void certificates_add_up(void **state) {
  choir_certificate sum = {0}, none = {0},
                    a = {.assignments = 1,
                         .iterations = 10,
                         .gap = -0.2,
                         .expert_before = 3,
                         .token_before = 0.5,
                         .expert_after = 0,
                         .token_after = 1,
                         .over_cap = 7},
                    b = {.assignments = 2,
                         .iterations = 5,
                         .gap = -0.1,
                         .expert_before = 1,
                         .token_before = 0.7,
                         .expert_after = 4,
                         .token_after = 0,
                         .over_cap = 1};
  ch_certificate_add(&sum, &a);
  ch_certificate_add(&sum, &none);
  assert_true(sum.gap == -0.2);
  ch_certificate_add(&sum, &b);
  assert_true(sum.assignments == 3 && sum.iterations == 15 && sum.gap == -0.1 && sum.expert_before == 3);
  assert_true(sum.token_before == 0.7 && sum.expert_after == 4 && sum.token_after == 1 && sum.over_cap == 8);
  static const char *const keys[] = {"gap",         "expert_before", "token_before", "expert_after",
                                     "token_after", "over_cap",      "iterations"};
  const double values[] = {-0.1, 3, 0.7, 4, 1, 8, 15};
  json_t *told = ch_certificate_json(&sum);
  for (int i = 0; i < 7; i++) assert_true(json_number_value(json_object_get(told, keys[i])) == values[i]);
  json_decref(told);

  layer_case c = make("capped_expert_choice");
  c.options.solver = CH_SOLVER_DYKSTRA;
  choir_route_stats stats, more;
  float gates[N * E];
  const choir_route_request request = {.config = test_config_of(&c.options), .n = N, .e = E, .scores = c.scores};
  test_ok(choir_route(&request, gates, &stats));
  test_ok(choir_route(&request, gates, &more));
  int64_t over = 0;
  for (int i = 3; i <= E; i++) over += stats.histogram[i];
  assert_int_equal(stats.certificate.over_cap, over);
  test_ok(ch_route_stats_add(&stats, &more));
  assert_int_equal(stats.certificate.over_cap, 2 * over);
  assert_int_equal(stats.certificate.assignments, 2);
  ch_route_stats_clear(&stats);
  assert_int_equal(stats.certificate.assignments, 0);
  choir_route_stats_clear(&stats);
  choir_route_stats_clear(&more);
  layer_case_free(&c);
}

/* Where one weight of the entropy gets nowhere in 100 rounds, stages of falling ones do. */
static void stages_get_nearer(void **state) {
  enum { TOKENS = 1024, EXPERTS = 64 };
  float *logits = malloc(sizeof(float) * TOKENS * EXPERTS), *gates = malloc(sizeof(float) * TOKENS * EXPERTS);
  ch_rng rng = ch_rng_make(9, CH_STREAM_TEST, 1);
  for (uint64_t j = 0; j < TOKENS * EXPERTS; j++) logits[j] = (float)ch_rng_normal(rng, j);
  choir_config config = {.model.router = router_options("capped_expert_choice")};
  ch_router_spec *o = &config.model.router;
  choir_route_request request = {.config = &config, .n = TOKENS, .e = EXPERTS, .scores = logits, .is_logits = 1};
  int64_t over[2], rounds[2];
  o->solver = CH_SOLVER_DYKSTRA;
  for (int i = 0; i < 2; i++) {
    choir_route_stats stats;
    o->solver_stages = i ? 20 : 1;
    test_ok(choir_route(&request, gates, &stats));
    over[i] = stats.certificate.over_cap, rounds[i] = stats.certificate.iterations;
    choir_route_stats_clear(&stats);
  }
  if (!(over[1] < over[0] / 2)) fail_msg("%d over with one stage, %d with 20", (int)over[0], (int)over[1]);
  assert_true(rounds[0] == 100 && rounds[1] >= 20 && rounds[1] <= 100);
  free(logits), free(gates);
}

/* Scores up to the end of a float's range are assigned as smaller ones are: what a backend computes in units of lambda
 * does not overflow. */
static void large_scores_do_not_overflow(void **state) {
  choir_config config = {.model.router = router_options("capped_expert_choice")};
  ch_router_spec *o = &config.model.router;
  layer_case c = make(o->kind->name);
  float scores[N * E], gates[N * E];
  double gap = 0;
  const choir_route_request request = {.config = &config, .n = N, .e = E, .scores = scores};
  o->solver = CH_SOLVER_DYKSTRA;
  for (int stages = 1; stages <= 4; stages += 3)
    for (int i = 0; i < 3; i++) {
      choir_route_stats stats;
      o->solver_stages = stages;
      for (int j = 0; j < N * E; j++) scores[j] = (float)c.scores[j] * (i < 1 ? 1e20F : i < 2 ? 1e37F : 3.3e38F);
      test_ok(choir_route(&request, gates, &stats));
      if (!i) gap = stats.certificate.gap;
      if (!(fabs(stats.certificate.gap - gap) < 1e-3)) fail_msg("%d: %g, %g", i, stats.certificate.gap, gap);
      choir_route_stats_clear(&stats);
    }
  layer_case_free(&c);
}

TEST_MAIN(NULL, NULL, refuses_by_name_and_value, padding_lowers_k, instruction_sets_choose_alike,
          duals_repeat_the_assignment, certificates_add_up, stages_get_nearer, large_scores_do_not_overflow)
