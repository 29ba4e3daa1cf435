/* Every router against its definition (naive_routing.h) and by law. */
#include "model/config.h"
#include "moe_testing.h"
#include "naive_routing.h"

enum { N = 97, E = 6, T = 25 };

static int32_t ids[N];
static uint8_t mask[N];

/* Softmax of normal logits; `levels` above 0 makes ties by rounding to that many steps. */
static void make_scores(real *scores, int n, int e, uint32_t sub, int levels) {
  test_normal(scores, (int64_t)n * e, sub);
  for (int t = 0; t < n; t++) {
    double sum = 0;
    for (int i = 0; i < e; i++) sum += exp((double)scores[t * e + i]);
    for (int i = 0; i < e; i++) {
      double s = exp((double)scores[t * e + i]) / sum;
      scores[t * e + i] = (real)(levels ? (floor(s * levels) + 1) / (levels + e) : s);
    }
  }
}

static int set_up(void **state) {
  ch_rng r = ch_rng_make(1, CH_STREAM_TEST, 50);
  for (int t = 0; t < N; t++) {
    ids[t] = (int32_t)ch_rng_below(r, (uint64_t)t, 1000);
    mask[t] = ch_rng_below(r, (uint64_t)(1000 + t), 4) != 0;
  }
  return 0;
}

static layer_case router_case(const char *name, int e) {
  layer_case c = choice_case(name, N, e);
  c.T = T;
  c.seed = 5;
  c.token = ids;
  return c;
}

/* These laws hold for any record. */
static void check_record(const layer_case *c) {
  const ch_record *r = &c->record;
  assert_int_equal(r->expert_begin[0], 0);
  assert_int_equal(r->expert_begin[r->experts], ch_slots(r));
  assert_true(ch_slots(r) <= r->max_slots);
  assert_int_equal(r->token_begin[0], 0);
  assert_int_equal(r->token_begin[r->tokens], ch_slots(r));
  int64_t asked = 0;
  for (int i = 0; i < r->experts; i++) {
    int load = r->expert_begin[i + 1] - r->expert_begin[i];
    assert_true(load <= c->counts.capacity && load <= c->counts.demand[i]);
    asked += c->counts.demand[i];
    for (int s = r->expert_begin[i] + 1; s < r->expert_begin[i + 1]; s++)
      assert_true(r->slot_token[s - 1] < r->slot_token[s]);
  }
  assert_int_equal(asked - ch_slots(r), *c->counts.dropped);
  for (int t = 0; t < r->tokens; t++)
    for (int j = r->token_begin[t]; j < r->token_begin[t + 1]; j++) {
      assert_int_equal(r->slot_token[r->token_slot[j]], t);
      assert_true(j == r->token_begin[t] || r->token_slot[j - 1] < r->token_slot[j]);
      assert_true(!c->valid || c->valid[t]);
    }
}

/* Any of several best assignments will do: they have the same loads and the same total, if nothing else tells them
 * apart. */
static void check_totals(const layer_case *c, const double *got, const double *want) {
  double difference = 0;
  int slots = 0;
  for (int j = 0; j < N * c->e; j++) {
    difference += (double)c->scores[j] * ((got[j] > 0) - (want[j] > 0));
    slots += (got[j] > 0) - (want[j] > 0);
  }
  assert_true(fabs(difference) <= 1e-5);
  assert_int_equal(slots, 0);
  assert_int_equal(c->counts.certificate.over_cap, 0);
  assert_true(fabs(c->counts.certificate.gap) <= 1e-12);
}

static void check_against_naive(layer_case *c, int ties) {
  router_run(c, NULL);
  check_record(c);
  double *got = calloc(N * (size_t)c->e, sizeof *got), *want = calloc(N * (size_t)c->e, sizeof *want);
  naive_routing q = {.o = &c->options,
                     .n = N,
                     .e = c->e,
                     .T = c->T,
                     .scores = c->scores,
                     .token = c->token,
                     .valid = c->valid,
                     .training = c->training,
                     .rng = ch_rng_make(c->seed, CH_STREAM_SECOND_EXPERT, 3),
                     .rng_base = c->rng_base,
                     .gate = want};
  naive_route(&q);
  record_gates(&c->record, got);
  if (ties && c->counts.certificate.assignments)
    check_totals(c, got, want);
  else
    for (int j = 0; j < N * c->e; j++)
      if (!(fabs(got[j] - want[j]) <= 1e-6))
        fail_msg("%s, pool %s, K %d, factors %g %g, training %d, priority %s: gate[%d,%d] is %g, not %g",
                 c->options.kind->name, ch_router_pools[c->options.pool], c->options.experts_per_token,
                 c->options.capacity_factor, c->options.eval_capacity_factor, c->training,
                 ch_router_priorities[c->options.priority], j / c->e, j % c->e, got[j], want[j]);
  assert_int_equal(*c->counts.dropped, q.dropped);
  assert_true(fabs(*c->counts.aux_loss - q.aux) <= 1e-6);
  free(got);
  free(want);
}

static int pooled(int router) { return ch_router_takes(ch_routers[router], CH_OPTION_pool); }

static int token_choice(int router) { return ch_router_takes(ch_routers[router], CH_OPTION_priority); }

/* Null experts take part: scores leave them something of 1. */
static void add_nulls(layer_case *c, int variant) {
  if (!ch_router_takes(c->options.kind, CH_OPTION_null_experts)) return;
  if (!(variant & 8) || c->options.score == CH_SIGMOID) return;
  c->options.null_experts = variant & 4 ? 2 : c->e + 1;
  for (int j = 0; j < N * c->e; j++) c->scores[j] *= (real)(variant & 4 ? 0.75 : 0.5);
}

/* Every router and pool, with and without padding, training and evaluation, distinct scores and ties, tight and wide
 * capacity.
 */
static void agrees_with_its_definition(void **state) {
  const double factors[] = {0.5, 1, 1.25, 3};
  static const char *const pools[] = {"batch", "sequence", "position", "group"};
  for (int router = 0; ch_routers[router]; router++)
    for (int variant = 0; variant < (pooled(router) ? 128 : 64); variant++) {
      layer_case c = router_case(ch_router_names[router], experts_for(ch_router_names[router], E));
      make_scores(c.scores, N, c.e, 10 + (uint32_t)variant, variant & 1 ? 5 : 0);
      c.valid = variant & 2 ? mask : NULL;
      c.training = (variant & 4) != 0;
      c.options.pool = ch_word_number(ch_router_pools, pools[(variant >> 3 & 1) + (variant >> 6) * 2]);
      c.options.group_size = 40;
      if (variant >> 6) c.T = 7; /* positions of 13 and 14 sequences */
      c.options.random_second = (variant & 8) != 0;
      c.options.cap = variant & 8 ? 2 : 0;
      c.options.experts_per_token = (variant >> 4 & 3) + 1;
      c.rng_base = (uint64_t)variant * 1000;
      c.options.capacity_factor = factors[variant >> 4 & 3];
      c.options.eval_capacity_factor = variant & 1 ? 2 : 0;
      if (variant >> 5 & 1) c.options.aux_scope = CH_SCOPE_SEQUENCE, c.options.priority = CH_BY_SCORE;
      if (token_choice(router) && (variant & 40) == 40) c.options.score = CH_SIGMOID;
      if (token_choice(router) && (variant & 48) == 48) c.options.capacity_factor = 0;
      add_nulls(&c, variant);
      check_against_naive(&c, variant & 1);
      layer_case_free(&c);
    }
}

/* A mask that leaves nobody, or one token. */
static void almost_all_tokens_masked(void **state) {
  uint8_t few[N] = {0};
  for (int one = 0; one < 2; one++) {
    few[40] = (uint8_t)one;
    for (int router = 0; ch_routers[router]; router++) {
      layer_case c = router_case(ch_router_names[router], experts_for(ch_router_names[router], E));
      make_scores(c.scores, N, c.e, 3, 0);
      c.valid = few;
      check_against_naive(&c, 0);
      layer_case_free(&c);
    }
  }
}

/* Experts in another order: the same gates in another order. */
static void permuting_experts_permutes_the_record(void **state) {
  const int order[E] = {3, 5, 0, 2, 1, 4};
  for (int router = 0; ch_routers[router]; router++) {
    if (!ch_router_learned(ch_routers[router])) continue;
    layer_case a = router_case(ch_router_names[router], E), b = router_case(ch_router_names[router], E);
    make_scores(a.scores, N, E, 4, 0);
    for (int t = 0; t < N; t++)
      for (int i = 0; i < E; i++) b.scores[t * E + i] = a.scores[t * E + order[i]];
    router_run(&a, NULL);
    router_run(&b, NULL);
    static double gates_a[N * E], gates_b[N * E];
    record_gates(&a.record, gates_a);
    record_gates(&b.record, gates_b);
    for (int t = 0; t < N; t++)
      for (int i = 0; i < E; i++) assert_true(gates_b[t * E + i] == gates_a[t * E + order[i]]);
    assert_int_equal(*a.counts.dropped, *b.counts.dropped);
    layer_case_free(&a);
    layer_case_free(&b);
  }
}

static void loads_are_what_they_promise(void **state) {
  layer_case c = router_case("expert_choice", E);
  make_scores(c.scores, N, E, 4, 0);
  c.options.capacity_factor = E; /* every expert takes everybody */
  router_run(&c, NULL);
  assert_int_equal(ch_slots(&c.record), N * E);
  c.options.capacity_factor = 2; /* n c / e = 32.3 */
  router_run(&c, NULL);
  for (int i = 0; i <= E; i++) assert_int_equal(c.record.expert_begin[i], 32 * i);
  layer_case_free(&c);

  static const char *const choosing[] = {"topk", "gshard_top2", "switch_top1"};
  for (int router = 0; router < 3; router++) {
    layer_case wide = router_case(choosing[router], E);
    make_scores(wide.scores, N, E, 4, 0);
    wide.options.capacity_factor = E; /* nobody is turned away */
    router_run(&wide, NULL);
    assert_int_equal(*wide.counts.dropped, 0);
    assert_int_equal(ch_slots(&wide.record), N * ch_router_choices(&wide.options));
    for (int i = 0; i < N * E; i++) wide.scores[i] = (real)(i % E == 2 ? 0.9 : 0.1 / (E - 1)); /* one favourite */
    wide.options.capacity_factor = 1;
    router_run(&wide, NULL);
    assert_int_equal(wide.counts.demand[2], N);
    assert_true(*wide.counts.dropped >= N - wide.counts.capacity);
    layer_case_free(&wide);
  }
}

/* The favourite's room goes to the first tokens; of equal scores to the lower expert. */
static void order_decides(void **state) {
  layer_case c = router_case("gshard_top2", E);
  for (int i = 0; i < N * E; i++) c.scores[i] = (real)(1.0 / E);
  router_run(&c, NULL);
  int capacity = c.counts.capacity;
  assert_int_equal(capacity, (2 * N + E - 1) / E);
  assert_int_equal(ch_slots(&c.record), 2 * capacity);
  for (int s = 0; s < capacity; s++) {
    assert_int_equal(c.record.slot_token[s], s);
    assert_int_equal(c.record.slot_token[capacity + s], s);
    assert_true(c.record.slot_gate[s] == (real)0.5);
  }
  layer_case_free(&c);
}

/* Kept second experts: 2 g2 of them on average, none sampled in evaluation. */
static void second_experts_are_sampled(void **state) {
  layer_case c = router_case("gshard_top2", E);
  make_scores(c.scores, N, E, 4, 0);
  c.options.capacity_factor = E;
  c.options.random_second = 1;
  double expected = 0, kept = 0;
  for (c.seed = 0; c.seed < 200; c.seed++) {
    router_run(&c, NULL);
    kept += ch_slots(&c.record) - N;
  }
  double gates[N * E];
  c.training = 0;
  router_run(&c, NULL);
  assert_int_equal(ch_slots(&c.record), 2 * N);
  record_gates(&c.record, gates);
  for (int t = 0; t < N; t++) {
    double second = 1;
    for (int i = 0; i < E; i++)
      if (gates[t * E + i] > 0) second = fmin(second, gates[t * E + i]);
    expected += 200 * 2 * second;
  }
  assert_true(fabs(kept / expected - 1) < 0.02);
  layer_case_free(&c);
}

static void sizes_round_as_documented(void **state) {
  assert_int_equal(ch_router_k(2, 97, 6), 32); /* 32.33 */
  assert_int_equal(ch_router_k(1, 5, 2), 3);   /* 2.5 goes up */
  assert_int_equal(ch_router_k(1.1, 100, 11), 10);
  assert_int_equal(ch_router_k(0.1, 10, 10), 1); /* never 0 */
  assert_int_equal(ch_router_k(8, 10, 2), 10);   /* never above n */
  assert_int_equal(ch_router_k(2, 0, 4), 0);
  assert_int_equal(ch_router_capacity(1.25, 1, 97, 6), 21);
  assert_int_equal(ch_router_capacity(1.1, 1, 100, 10), 11); /* 1.1 * 100 / 10 is above 11 in doubles */
  assert_int_equal(ch_router_capacity(1, 2, 97, 6), 33);
  assert_int_equal(ch_router_capacity(1e300, 2, 97, 6), 97);
}

/* Calls check with one field of the defaults changed and looks for words in the message. */
static void refused(const char *router, int n, int e, int T_, double factor, double eval, const char *pool,
                    double jitter, const char *words) {
  ch_router_spec o = router_options(router);
  if (factor != 0) o.capacity_factor = factor;
  o.eval_capacity_factor = eval;
  if (pool) o.pool = ch_word_number(ch_router_pools, pool);
  o.jitter = jitter;
  int code = ch_options_check_router(&o);
  if (!code) code = ch_router_find(router)->check(&o, n, e, T_);
  test_fails(code, CHOIR_ERROR_ARGUMENT, words);
}

static void refuses_nulls(const char *router, const char *score, double z_loss, const char *words) {
  ch_router_spec o = router_options(router);
  o.null_experts = 4, o.z_loss_weight = z_loss;
  o.score = ch_word_number(ch_router_scores, score);
  int code = ch_options_check_router(&o);
  if (!code) code = ch_router_find(router)->check(&o, 64, 4, 0);
  test_fails(code, CHOIR_ERROR_ARGUMENT, words);
}

static int looks(const char *router, int training) {
  const ch_router_spec o = test_router(router);
  return choir_router_looks_across_tokens(test_config_of(&o), training);
}

static void refuses_by_name_and_value(void **state) {
  refused("expert_choice", 8, 16, 0, 0, 0, NULL, 0, "16 experts choose among only 8 tokens");
  refused("expert_choice", 64, 16, 8, 0, 0, "sequence", 0, "16 experts choose among only 8 tokens");
  refused("expert_choice", 64, 16, 0, 17, 0, NULL, 0, "capacity_factor 17");
  refused("expert_choice", 64, 16, 0, 2, 17, NULL, 0, "capacity_factor 17");
  refused("expert_choice", 64, 64, 0, 0.25, 0, NULL, 0, "k = n c / e is 0");
  refused("expert_choice", 64, 16, 0, -1, 0, NULL, 0, "capacity_factor is -1");
  refused("expert_choice", 64, 16, 0, (double)NAN, 0, NULL, 0, "capacity_factor");
  refused("expert_choice", 64, 16, 0, 0, -2, NULL, 0, "eval_capacity_factor is -2");
  refused("expert_choice", 1 << 25, 64, 64, 64, 0, "sequence", 0, "too many for one call");
  refused("expert_choice", 0, 16, 0, 0, 0, NULL, 0, "0 tokens");
  refused("gshard_top2", 64, 1, 0, 0, 0, NULL, 0, "there is only 1");
  refused("switch_top1", 64, 4, 0, 0, 0, NULL, 1.5, "jitter is 1.5");
  refused("switch_top1", 64, 0, 0, 0, 0, NULL, 0, "0 experts");
  refused("dense", 64, 4, 0, 0, 0, NULL, 0, "experts is 4");
  refused("quantile_balanced", 64, 1, 0, 0, 0, NULL, 0, "takes 2 experts but there is only 1");
  refused("random", 64, 1, 0, 0, 0, NULL, 0, "takes 2 experts but there is only 1");
  refused("kmeans", 64, 0, 0, 0, 0, NULL, 0, "0 experts");
  refused("global_topk", 64, 4, 0, 5, 0, NULL, 0, "capacity_factor 5");
  refused("global_topk", 1 << 26, 64, 0, 0, 0, NULL, 0, "too many for one call");
  refuses_nulls("topk", "sigmoid", 0, "null_experts is 4 with score sigmoid");
  refuses_nulls("topk", "softmax", 0.5, "null_experts is 4 with z_loss_weight 0.5");
  refuses_nulls("switch_top1", "softmax", 0, "null_experts is 4, but router 'switch_top1' does not take it");
  assert_null(ch_router_find("expert_chioce"));
  assert_non_null(strstr(choir_error_message(), "did you mean 'expert_choice'"));
  assert_int_equal(choir_router_looks_across_tokens(NULL, 0), -1);
  assert_int_equal(looks("expert_choice", 0), 1);
  assert_int_equal(looks("switch_top1", 0), 1);
  assert_int_equal(looks("hash", 0), 0);
  assert_int_equal(looks("base", 0), 0);
  assert_int_equal(looks("base", 1), 1);
  assert_int_equal(looks("hash", 1), 0);
}

TEST_MAIN(set_up, NULL, agrees_with_its_definition, almost_all_tokens_masked, permuting_experts_permutes_the_record,
          loads_are_what_they_promise, order_decides, second_experts_are_sampled, sizes_round_as_documented,
          refuses_by_name_and_value)
