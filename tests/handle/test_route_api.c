/* The public interface: choir_route and choir_layer_*, as an embedder calls them. */
#include "choir/layer.h"
#include "moe/route_stats.h"
#include "moe_testing.h"
#include "naive_routing.h"

enum { N = 64, E = 8, D = 16, H = 24 };

/* The gates of a token are what choir_router_describe says of the router. score [e]: logits where it reads these. */
static void check_described(const ch_router_spec *o, const float *score, const float *gate, int e) {
  choir_router_info info;
  test_ok(choir_router_describe(o->kind->name, &info));
  double scale = 0; /* of gates that are scores by one factor for a token */
  for (int i = 0; i < e; i++) {
    double g = (double)gate[i], s = (double)score[i];
    if (g == 0) continue;
    if (scale == 0) scale = g / s;
    if (info.gates == CHOIR_GATES_EVEN) assert_true(fabs(g - 1.0 / ch_router_choices(o)) < 1e-6);
    if (info.gates == CHOIR_GATES_SCORE)
      assert_true(o->normalize_gates ? fabs(g / s - scale) < 1e-5 * scale : fabs(g - s) < 1e-6);
    if (info.gates == CHOIR_GATES_SHARE) assert_true(fabs(g / s - scale) < 1e-5 * scale && scale > 1);
    if (info.gates == CHOIR_GATES_SIGMOID) assert_true(fabs(g - 1 / (1 + exp(-s))) < 1e-6);
  }
  assert_true(info.gates != CHOIR_GATES_OWN && (info.loss == CHOIR_LOSS_BALANCE) == (o->aux_loss_weight > 0));
}

static void describes_routers(void **state) {
  choir_router_info info;
  test_fails(choir_router_describe("absent", &info), CHOIR_ERROR_ARGUMENT, "there is no router 'absent'");
  test_ok(choir_router_describe("quantile_balanced", &info));
  assert_true(info.reads == CHOIR_READS_SCORES && info.state == CHOIR_STATE_PRICES && info.choices == 2);
  test_ok(choir_router_describe("bias_balanced", &info));
  assert_true(info.state == CHOIR_STATE_BIASES && !info.is_plugin);
  test_ok(choir_router_describe("kmeans", &info));
  assert_true(info.state == CHOIR_STATE_CENTROIDS && info.reads == CHOIR_READS_LOGITS);
  test_ok(choir_router_describe("expert_choice", &info));
  assert_true(info.state == CHOIR_STATE_CUTOFFS && !info.choices);
  test_ok(choir_router_describe("random", &info));
  assert_true(info.is_plugin && info.draws && info.state == CHOIR_STATE_NONE);
}

/* Gates and statistics, from logits and from scores. */
static void routes_a_matrix(void **state) {
  int32_t ids[N];
  uint8_t valid[N];
  for (int t = 0; t < N; t++) {
    ids[t] = 3 * t;
    valid[t] = t != 5;
  }
  for (int router = 0; ch_routers[router]; router++) {
    int e = experts_for(ch_router_names[router], E);
    float *logits = test_new_normal(N * e, 1), *scores = test_new(N * e), *gates = test_new(N * e);
    for (int t = 0; t < N; t++) {
      double sum = 0;
      for (int i = 0; i < e; i++) sum += exp((double)logits[t * e + i]);
      for (int i = 0; i < e; i++) scores[t * e + i] = (float)(exp((double)logits[t * e + i]) / sum);
    }
    ch_router_spec o = router_options(ch_router_names[router]);
    o.score = CH_SOFTMAX; /* the scores below are softmaxes */
    double want[N * E];
    if (!strcmp(o.kind->name, "base"))
      memcpy(scores, logits, sizeof(float) * (size_t)(N * e)); /* takes both as logits */
    naive_routing q = {.o = &o,
                       .n = N,
                       .e = e,
                       .scores = scores,
                       .token = ids,
                       .valid = valid,
                       .training = 1,
                       .rng = ch_rng_make(0, CH_STREAM_SECOND_EXPERT, 0),
                       .gate = want};
    naive_route(&q);
    for (int is_logits = 0; is_logits < 2; is_logits++) {
      choir_route_stats stats;
      test_poison(gates, N * e);
      test_ok(choir_route(&(choir_route_request){.config = test_config_of(&o),
                                                 .n = N,
                                                 .e = e,
                                                 .scores = is_logits ? logits : scores,
                                                 .is_logits = is_logits,
                                                 .tokens = ids,
                                                 .valid = valid,
                                                 .training = 1},
                          gates, &stats));
      double mass = 0;
      int64_t load = 0, tokens = 0, slots = 0;
      for (int j = 0; j < N * e; j++) {
        assert_true(fabs((double)gates[j] - want[j]) < 1e-6);
        mass += want[j];
      }
      for (int i = 0; i < e; i++) load += stats.load[i];
      for (int i = 0; i <= e; i++) {
        tokens += stats.histogram[i];
        slots += i * stats.histogram[i];
      }
      for (int t = 0; t < N; t++) check_described(&o, scores + t * e, gates + t * e, e);
      assert_int_equal(stats.tokens, N - 1);
      assert_int_equal(tokens, N - 1);
      assert_int_equal(load, stats.assignments);
      assert_int_equal(slots, stats.assignments);
      assert_int_equal(stats.dropped, q.dropped);
      assert_true(fabs(stats.aux_loss - q.aux) < 1e-5);
      assert_true(fabs(stats.gate_mass - mass / (N - 1)) < 1e-6);
      choir_route_stats_clear(&stats);
    }
    free(logits);
    free(scores);
    free(gates);
  }
}

static void refuses_bad_matrices(void **state) {
  float scores[N * E], gates[N * E];
  choir_config c = {.model.router = router_options("gshard_top2")};
  ch_router_spec *o = &c.model.router;
  choir_route_request r = {.config = &c, .n = N, .e = E, .scores = scores};
  for (int j = 0; j < N * E; j++) scores[j] = 0.125f;
  scores[7 * E + 3] = NAN;
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_NUMERIC, "scores[7,3]");
  r.is_logits = 1;
  scores[7 * E + 3] = INFINITY;
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_NUMERIC, "scores[7,3]");
  scores[7 * E + 3] = -0.5f;
  test_ok(choir_route(&r, gates, NULL));
  r.is_logits = 0;
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_ARGUMENT, "-0.5");
  for (const ch_router *const *router = ch_routers; *router; router++) {
    if (!ch_router_scored(*router)) continue;
    *o = ch_router_default(*router);
    test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_ARGUMENT, "are these logits?");
  }
  *o = router_options("gshard_top2");
  r.is_logits = 1;
  scores[7 * E + 3] = -INFINITY;
  test_ok(choir_route(&r, gates, NULL));
  assert_true(gates[7 * E + 3] == 0);
  for (int i = 0; i < E; i++) scores[7 * E + i] = -INFINITY;
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_NUMERIC, "every logit");
  uint8_t valid[N];
  for (int t = 0; t < N; t++) valid[t] = t != 7;
  r.valid = valid;
  test_ok(choir_route(&r, gates, NULL)); /* padding may hold anything */

  r.is_logits = 0;
  *o = router_options("hash");
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_ARGUMENT, "token ids");
  const int32_t ids[N] = {0, 1, -4};
  r.tokens = ids;
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_ARGUMENT, "tokens[2] is -4");
  *o = router_options("expert_choice");
  r = (choir_route_request){.config = &c, .n = 4, .e = E, .scores = scores};
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_ARGUMENT, "8 experts");
  r.n = N;
  r.sequence_length = -1;
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_ARGUMENT, "sequence_length -1");
  r.sequence_length = 0;
  r.scores = NULL;
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_ARGUMENT, "scores is NULL");
  r.scores = gates;
  test_fails(choir_route(&r, NULL, NULL), CHOIR_ERROR_ARGUMENT, "what is to receive the result is NULL");
  r.scores = scores, r.config = NULL;
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_ARGUMENT, "config is NULL");
  r.config = &c;
  *o = router_options("expert_choice");
  r.n = INT32_MAX;
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_ARGUMENT, "too many");
  r.n = N;
  for (int i = 0; i < 4; i++) { /* by thresholds as by all other doors */
    const int caps[] = {-1, -536870912, INT32_MIN};
    *o = router_options(i & 1 ? "global_topk" : "capped_expert_choice");
    r.thresholds = i & 2 ? scores : NULL;
    for (int j = 0; j < 3; j++) {
      o->cap = caps[j];
      test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_ARGUMENT, "cap is -");
    }
  }
  r.thresholds = NULL;
  r.tokens = ids;
  for (int K = -1; K < 1; K++) {
    *o = router_options(K ? "random" : "quantile_balanced");
    o->experts_per_token = K;
    test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_ARGUMENT, "experts_per_token is ");
  }
}

static choir_layer *make_layer(const ch_router_spec *router, int e, const char *compute) {
  choir_layer_options o = CHOIR_LAYER_OPTIONS_INIT;
  choir_layer *layer;
  o.tokens = N;
  o.d_model = D;
  o.d_hidden = H;
  o.experts = e;
  o.config = test_config_of(router);
  o.threads = 2;
  o.compute = compute;
  o.seed = 5;
  test_ok(choir_layer_create(&o, &layer));
  return layer;
}

/* The public layer is the internal one, for every n up to the planned one and in any order of calls. */
static void layer_on_own_arrays(void **state) {
  int32_t ids[N];
  for (int t = 0; t < N; t++) ids[t] = 3 * t;
  for (int router = 0; ch_routers[router]; router++) {
    int e = experts_for(ch_router_names[router], E);
    size_t router_bytes = sizeof(float) * (size_t)(D * e), weights = sizeof(float) * (size_t)(e * D * H);
    layer_case c = layer_case_new(ch_router_names[router], N, D, H, e);
    choir_layer *layer = make_layer(&c.options, e, "fp32");
    choir_layer_weights w = {.router = c.router, .w1 = c.w1, .w2 = c.w2},
                        g = {.router = test_new(D * e), .w1 = test_new(e * D * H), .w2 = test_new(e * D * H)};
    float out[N * D], dx[N * D];
    const int sizes[] = {N, 40, 61, N};
    c.backend = "cpu";
    c.token = ids;
    c.sub = 0;
    c.aux_scale = (real)c.options.aux_loss_weight;
    for (int call = 0; call < 4; call++) {
      int n = c.n = sizes[call];
      layer_run(&c, 1);
      test_ok(choir_layer_forward(layer, &w, n, c.x, ids, NULL, 0, out));
      test_ok(choir_layer_forward(layer, &w, n, c.x, ids, NULL, 1, out));
      memset(g.router, 0, router_bytes);
      memset(g.w1, 0, weights);
      memset(g.w2, 0, weights);
      test_ok(choir_layer_backward(layer, &w, c.x, c.dout, dx, &g));
      assert_memory_equal(out, c.out, sizeof(float) * (size_t)(n * D));
      assert_memory_equal(dx, c.dx, sizeof(float) * (size_t)(n * D));
      assert_memory_equal(g.router, c.drouter, router_bytes);
      assert_memory_equal(g.w1, c.dw1, weights);
      assert_memory_equal(g.w2, c.dw2, weights);
      choir_route_stats stats;
      test_ok(choir_layer_get_route_stats(layer, &stats));
      assert_int_equal(stats.assignments, ch_slots(&c.record));
      assert_true(stats.aux_loss == *c.counts.aux_loss);
      c.rng_base += (uint64_t)n;
      choir_route_stats_clear(&stats);
    }
    assert_true(choir_layer_bytes(layer) > sizeof(float) * N * (D + H));
    choir_layer_free(layer);
    free(g.router);
    free(g.w1);
    free(g.w2);
    layer_case_free(&c);
  }
}

/* Jitter draws new factors at every training call, the same ones for the same seed. */
static void randomness_goes_on(void **state) {
  layer_case c = layer_case_new("switch_top1", N, D, H, E);
  choir_layer_weights w = {.router = c.router, .w1 = c.w1, .w2 = c.w2};
  float out[2][2][N * D];
  c.options.jitter = 0.1;
  for (int run = 0; run < 2; run++) {
    choir_layer *layer = make_layer(&c.options, E, "fp32");
    for (int call = 0; call < 2; call++) test_ok(choir_layer_forward(layer, &w, N, c.x, NULL, NULL, 1, out[run][call]));
    choir_layer_free(layer);
  }
  assert_memory_equal(out[0], out[1], sizeof out[0]);
  assert_true(test_error(out[0][0], out[0][1], N * D) > 1e-4);
  layer_case_free(&c);
}

static void layer_refuses(void **state) {
  layer_case c = layer_case_new("hash", N, D, H, E);
  choir_layer *layer;
  choir_layer_options o = CHOIR_LAYER_OPTIONS_INIT;
  o.tokens = N;
  o.d_model = D;
  o.d_hidden = H;
  test_fails(choir_layer_create(&o, &layer), CHOIR_ERROR_ARGUMENT, "experts is 0");
  o.experts = E;
  test_fails(choir_layer_create(&o, &layer), CHOIR_ERROR_ARGUMENT, "config is NULL");
  o.config = test_config_of(&c.options);
  o.compute = "fp16";
  test_fails(choir_layer_create(&o, &layer), CHOIR_ERROR_ARGUMENT, "compute 'fp16'");
  o.compute = "fp32";
  o.backend = "gpu";
  test_fails(choir_layer_create(&o, &layer), CHOIR_ERROR_ARGUMENT, "backend 'gpu'");
  assert_null(layer);
  choir_layer_options many = CHOIR_LAYER_OPTIONS_INIT;
  choir_config others = {.model.router = router_options("expert_choice")};
  many.config = &others;
  many.tokens = many.experts = 1 << 16; /* whose product is 0 in 32 bits */
  many.d_model = many.d_hidden = many.causal = 1;
  test_fails(choir_layer_create(&many, &layer), CHOIR_ERROR_ARGUMENT, "65536 tokens and 65536 experts");
  many.tokens = many.experts = 4;
  others.model.router.decay = 1; /* a mean that nothing enters */
  test_fails(choir_layer_create(&many, &layer), CHOIR_ERROR_ARGUMENT, "decay is 1");

  layer = make_layer(&c.options, E, "fp32");
  choir_layer_weights w = {.w1 = c.w1, .w2 = c.w2}, none = {.w1 = c.w1}; /* hash has no router weight */
  choir_route_stats stats;
  int32_t ids[N] = {0};
  test_fails(choir_layer_get_route_stats(layer, &stats), CHOIR_ERROR_ARGUMENT, "forward first");
  test_fails(choir_layer_forward(layer, &w, N, c.x, NULL, NULL, 1, c.out), CHOIR_ERROR_ARGUMENT, "token ids");
  test_fails(choir_layer_forward(layer, &w, N + 1, c.x, ids, NULL, 1, c.out), CHOIR_ERROR_ARGUMENT, "65 tokens");
  test_fails(choir_layer_forward(layer, &none, N, c.x, ids, NULL, 1, c.out), CHOIR_ERROR_ARGUMENT, "w2 is NULL");
  test_ok(choir_layer_forward(layer, &w, N, c.x, ids, NULL, 0, c.out));
  test_fails(choir_layer_backward(layer, &w, c.x, c.dout, c.dx, &w), CHOIR_ERROR_ARGUMENT, "training");
  choir_layer_free(layer);
  choir_layer_free(NULL);

  ch_router_spec of_models[] = {router_options("expert_choice"), router_options("random")};
  of_models[0].threshold_after = 5;
  of_models[1].consistency_weight = 0.5;
  w.router = c.router;
  for (int i = 0; i < 2; i++) { /* what only the training of a model does */
    layer = make_layer(&of_models[i], E, "fp32");
    test_ok(choir_layer_forward(layer, &w, N, c.x, ids, NULL, 0, c.out));
    test_fails(choir_layer_forward(layer, &w, N, c.x, ids, NULL, 1, c.out), CHOIR_ERROR_ARGUMENT,
               i ? "consistency_weight is" : "threshold_after is");
    choir_layer_free(layer);
  }
  layer_case_free(&c);
}

/* Sums of counts, means over tokens. */
static void statistics_add_up(void **state) {
  float scores[N * E], gates[N * E];
  ch_router_spec o = router_options("switch_top1");
  choir_route_stats a, b, sum;
  test_normal(scores, N * E, 9);
  test_ok(choir_route(
      &(choir_route_request){
          .config = test_config_of(&o), .n = N, .e = E, .scores = scores, .is_logits = 1, .training = 1},
      gates, &a));
  test_ok(choir_route(
      &(choir_route_request){
          .config = test_config_of(&o), .n = N / 2, .e = E, .scores = scores, .is_logits = 1, .training = 1},
      gates, &b));
  test_ok(choir_route(
      &(choir_route_request){
          .config = test_config_of(&o), .n = N, .e = E, .scores = scores, .is_logits = 1, .training = 1},
      gates, &sum));
  test_ok(ch_route_stats_add(&sum, &b));
  assert_int_equal(sum.tokens, a.tokens + b.tokens);
  assert_int_equal(sum.assignments, a.assignments + b.assignments);
  assert_int_equal(sum.dropped, a.dropped + b.dropped);
  for (int i = 0; i < E; i++) assert_int_equal(sum.load[i], a.load[i] + b.load[i]);
  for (int i = 0; i <= E; i++) assert_int_equal(sum.histogram[i], a.histogram[i] + b.histogram[i]);
  assert_true(fabs(sum.gate_mass - (2 * a.gate_mass + b.gate_mass) / 3) < 1e-12);
  assert_true(fabs(sum.aux_loss - (2 * a.aux_loss + b.aux_loss) / 3) < 1e-12);
  choir_route_stats fewer;
  test_ok(ch_route_stats_alloc(E - 1, &fewer));
  test_fails(ch_route_stats_add(&sum, &fewer), CHOIR_ERROR_ARGUMENT, "of 7 experts cannot be added to those of 8");
  choir_route_stats_clear(&fewer);
  sum.histogram[E] = 5;
  ch_route_stats_clear(&sum); /* to its last number */
  for (int i = 0; i <= E; i++) assert_int_equal(sum.histogram[i] + (i < E ? sum.load[i] + sum.demand[i] : 0), 0);
  choir_route_stats_clear(&a);
  choir_route_stats_clear(&b);
  choir_route_stats_clear(&sum);
}

/* Finite scores whose sum no float holds: shares of it are what they are, and not 0. */
static void sums_beyond_floats(void **state) {
  static const float scores[3][3] = {{2e38f, 3e38f, 1}, {.1f, .2f, .3f}, {.3f, .2f, .1f}};
  float gates[3][3];
  ch_router_spec top2 = router_options("gshard_top2"), chosen = router_options("expert_choice");
  top2.capacity_factor = chosen.capacity_factor = 3;
  chosen.normalize_gates = 1;
  const ch_router_spec *all[] = {&top2, &chosen};
  for (int i = 0; i < 2; i++) {
    test_ok(
        choir_route(&(choir_route_request){.config = test_config_of(all[i]), .n = 3, .e = 3, .scores = &scores[0][0]},
                    &gates[0][0], NULL));
    assert_true(fabs((double)gates[0][0] - 0.4) < 1e-6 && fabs((double)gates[0][1] - 0.6) < 1e-6);
  }
}

TEST_MAIN(NULL, NULL, describes_routers, sums_beyond_floats, routes_a_matrix, refuses_bad_matrices, layer_on_own_arrays,
          randomness_goes_on, layer_refuses, statistics_add_up)
