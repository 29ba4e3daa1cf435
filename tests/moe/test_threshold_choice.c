/* Training by thresholds: what the thresholds say, as far as loads near k allow. */
#include "moe/routers/threshold.h"
#include "moe_testing.h"

enum { N = 96, E = 4, K = 24 }; /* c = 1: at least 6 tokens, at most 48 */

static layer_case threshold_case(const real *thresholds) {
  layer_case c = choice_case("expert_choice", N, E);
  c.by_threshold = 1;
  c.thresholds = thresholds;
  c.options.capacity_factor = 1;
  c.options.threshold_after = 1;
  return c;
}

/* Token t goes before s for expert i: larger score, then lower index. */
static int before(const layer_case *c, int i, int t, int s) {
  real x = c->scores[t * E + i], y = c->scores[s * E + i];
  return x != y ? x > y : t < s;
}

/* By the definition: the best `load` tokens of every expert, where load is what reaches the threshold, held between
 * bounds of k. */
static void check_against_naive(layer_case *c, int k) {
  router_run(c, NULL);
  const ch_record *r = &c->record;
  int64_t dropped = 0;
  int valid = ch_valid_count(c->valid, N), min = (k + 3) / 4, max = 2 * k < valid ? 2 * k : valid, slots = 0;
  for (int i = 0; i < E; i++) {
    int reach = 0;
    for (int t = 0; t < N; t++) reach += (!c->valid || c->valid[t]) && c->scores[t * E + i] >= c->thresholds[i];
    int load = reach < min ? min : reach > max ? max : reach;
    dropped += reach > load ? reach - load : 0;
    assert_int_equal(c->counts.demand[i], reach);
    assert_int_equal(r->expert_begin[i], slots);
    for (int t = 0; t < N; t++) {
      int rank = 0;
      if (c->valid && !c->valid[t]) continue;
      for (int s = 0; s < N; s++) rank += (!c->valid || c->valid[s]) && s != t && before(c, i, s, t);
      if (rank == k - 1) assert_true(c->counts.cutoff[i] == c->scores[t * E + i]); /* of k, whatever was taken */
      if (rank >= load) continue;
      assert_int_equal(r->slot_token[slots], t);
      assert_true(r->slot_gate[slots] == c->scores[t * E + i]);
      slots++;
    }
  }
  assert_int_equal(ch_slots(r), slots);
  assert_int_equal(r->expert_begin[E], slots);
  assert_true(slots <= r->max_slots);
  assert_int_equal(*c->counts.dropped, dropped);
}

/* Nobody reaches the first threshold, everybody the second, as many as there is room for the third, and ties at the
 * fourth. */
static void loads_stay_near_k(void **state) {
  const real thresholds[E] = {2, -1, (real)0.5, (real)0.625};
  const int loads[E] = {K / 4, 2 * K, 2 * K, 36};
  layer_case c = threshold_case(thresholds);
  for (int t = 0; t < N; t++)
    for (int i = 0; i < E; i++) c.scores[t * E + i] = (real)((t * 37 + i) % N) / N;
  for (int t = 0; t < N; t++) c.scores[t * E + 3] = (real)(t % 8) / 8; /* 12 tokens a level, three levels reach */
  check_against_naive(&c, K);
  for (int i = 0; i < E; i++) assert_int_equal(c.record.expert_begin[i + 1] - c.record.expert_begin[i], loads[i]);
  layer_case_free(&c);
}

/* Random scores, coarse ones with ties at every bound, padding down to nobody, and thresholds from end to end. */
static void equals_its_definition(void **state) {
  ch_rng r = ch_rng_make(5, CH_STREAM_TEST, 71);
  for (int variant = 0; variant < 240; variant++) {
    real thresholds[E];
    uint8_t valid[N];
    int levels = variant % 3 ? 4 << variant % 3 * 2 : 0, count = 0;
    for (int i = 0; i < E; i++) {
      double level = (variant % 20 + i) / 20.0;
      thresholds[i] = (real)(levels ? floor(level * levels) / levels : level); /* where the ties are */
    }
    layer_case c = threshold_case(thresholds);
    for (int j = 0; j < N * E; j++) {
      double u = ch_rng_uniform(r, (uint64_t)(variant * N * E + j));
      c.scores[j] = (real)(levels ? floor(u * levels) / levels : u);
    }
    for (int t = 0; t < N; t++) count += valid[t] = t % 5 < variant / 20 % 6;
    c.valid = valid;
    c.threads = 1 + variant % 3;
    c.backend = variant % 2 ? "cpu" : "reference";
    check_against_naive(&c, ch_router_k(1, count, E));
    layer_case_free(&c);
  }
}

/* Thresholds at the cut-offs of k give what expert choice gives. */
static void at_the_cutoffs_it_is_expert_choice(void **state) {
  real cutoffs[E];
  layer_case a = threshold_case(NULL), b = threshold_case(cutoffs);
  test_normal(a.scores, N * E, 72);
  memcpy(b.scores, a.scores, sizeof(real) * N * E);
  a.by_threshold = 0;
  router_run(&a, NULL);
  memcpy(cutoffs, a.counts.cutoff, sizeof cutoffs);
  router_run(&b, NULL);
  assert_int_equal(ch_slots(&a.record), ch_slots(&b.record));
  assert_memory_equal(a.record.slot_token, b.record.slot_token, sizeof(int) * (size_t)ch_slots(&a.record));
  assert_memory_equal(a.counts.cutoff, b.counts.cutoff, sizeof cutoffs);
  layer_case_free(&a);
  layer_case_free(&b);
}

/* A threshold that nobody reaches comes down again, because what is observed is the cut-off of k. */
static void a_starved_expert_recovers(void **state) {
  real thresholds[E] = {5, 5, 5, 5};
  ch_router_spec o = router_options("expert_choice");
  int load = 0;
  for (int step = 0; step < 400; step++) {
    layer_case c = threshold_case(thresholds);
    test_normal(c.scores, N * E, 1000 + (uint32_t)step);
    router_run(&c, NULL);
    load = c.record.expert_begin[1];
    if (!step) assert_int_equal(load, K / 4);
    TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
      ch_routing seen = {.counts = c.counts};
      ch_router_observe(&x, o.kind, &o, E, &seen, (ch_router_state){.updated = thresholds, .observed = 100000});
    });
    layer_case_free(&c);
  }
  assert_in_range(load, K / 2, 2 * K - 1);
}

TEST_MAIN(NULL, NULL, loads_stay_near_k, equals_its_definition, at_the_cutoffs_it_is_expert_choice,
          a_starved_expert_recovers)
