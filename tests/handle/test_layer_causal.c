/* Routing by given thresholds, and a layer that serves by them, through the public interface. */
#include "choir/layer.h"
#include "naive_layer.h"

enum { N = 60, E = 6, D = 16, H = 24 };

static const float thresholds[E] = {0.1f, 0.15f, 0.2f, 2, 0, 0.3f};

/* Gate of expert i for a token: its score where it passes, and under a cap where fewer than cap experts come before. */
static float naive_gate(const float *score, int i, int cap) {
  int better = 0;
  if (!(score[i] >= thresholds[i])) return 0;
  for (int j = 0; j < E && cap; j++) {
    float mine = score[i] - thresholds[i], other = score[j] - thresholds[j];
    better += score[j] >= thresholds[j] && (other > mine || (other == mine && j < i));
  }
  return cap && better >= cap ? 0 : score[i];
}

static void routes_a_matrix(void **state) {
  float logits[N * E], scores[N * E], gates[N * E];
  uint8_t valid[N];
  test_normal(logits, N * E, 80);
  for (int t = 0; t < N; t++) {
    double sum = 0;
    valid[t] = t % 6 != 1;
    for (int i = 0; i < E; i++) sum += exp((double)logits[t * E + i]);
    for (int i = 0; i < E; i++) scores[t * E + i] = (float)(exp((double)logits[t * E + i]) / sum);
  }
  for (int variant = 0; variant < 8; variant++) {
    ch_router_spec o = router_options(variant & 1 ? "capped_expert_choice" : "expert_choice");
    choir_route_stats stats;
    int64_t slots = 0;
    const uint8_t *mask = variant & 2 ? valid : NULL;
    test_ok(choir_route(&(choir_route_request){.config = test_config_of(&o),
                                               .n = N,
                                               .e = E,
                                               .scores = variant & 4 ? logits : scores,
                                               .is_logits = variant & 4,
                                               .valid = mask,
                                               .thresholds = thresholds},
                        gates, &stats));
    for (int j = 0; j < N * E; j++) {
      float want = mask && !mask[j / E] ? 0 : naive_gate(scores + j / E * E, j % E, o.cap);
      if (!(fabsf(gates[j] - want) < 1e-6f)) fail_msg("token %d, expert %d: %g", j / E, j % E, (double)gates[j]);
      slots += want > 0;
    }
    assert_int_equal(stats.assignments, slots);
    assert_int_equal(stats.dropped, 0);
    choir_route_stats_clear(&stats);
  }
  ch_router_spec o = router_options("expert_choice"), hash = router_options("hash");
  float bad[E] = {0, NAN};
  choir_route_request r = {.config = test_config_of(&o), .n = 1, .e = E, .scores = scores, .thresholds = thresholds};
  test_ok(choir_route(&r, gates, NULL)); /* a token by itself */
  r.n = N;
  r.thresholds = bad;
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_NUMERIC, "thresholds[1]");
  r.config = test_config_of(&hash);
  r.thresholds = thresholds;
  test_fails(choir_route(&r, gates, NULL), CHOIR_ERROR_ARGUMENT, "'hash' keeps no thresholds");
}

static choir_layer *causal_layer(const char *router) {
  choir_layer_options o = CHOIR_LAYER_OPTIONS_INIT;
  choir_layer *layer;
  o.tokens = N;
  o.d_model = D;
  o.d_hidden = H;
  o.experts = E;
  const ch_router_spec spec = router_options(router);
  o.config = test_config_of(&spec);
  o.causal = 1;
  o.backend = "reference";
  o.threads = 2;
  test_ok(choir_layer_create(&o, &layer));
  return layer;
}

/* By the definition; a token alone comes out as in the batch; training is as it was. */
static void a_layer_serves_by_thresholds(void **state) {
  layer_case c = layer_case_new("expert_choice", N, D, H, E);
  choir_layer *layer = causal_layer("expert_choice");
  float given[E], out[N * D], one[D], *want = test_new(N * D), score[E];
  memcpy(given, thresholds, sizeof given);
  choir_layer_weights w = {.router = c.router, .w1 = c.w1, .w2 = c.w2, .thresholds = given};
  test_ok(choir_layer_forward(layer, &w, N, c.x, NULL, NULL, 0, out));
  for (int t = 0; t < N; t++) {
    naive_scores(&c, t, score);
    for (int i = 0; i < E; i++)
      if (naive_gate(score, i, 0) > 0) naive_expert(&c, t, i, (double)score[i], want + t * D);
    test_ok(choir_layer_forward(layer, &w, 1, c.x + t * D, NULL, NULL, 0, one));
    assert_memory_equal(one, out + t * D, sizeof one);
  }
  test_close(out, want, N * D, 2e-6);
  free(want);

  choir_layer_weights gradients = {.router = c.drouter, .w1 = c.dw1, .w2 = c.dw2};
  float dx[N * D];
  test_ok(choir_layer_forward(layer, &w, N, c.x, NULL, NULL, 1, out));
  test_ok(choir_layer_backward(layer, &w, c.x, c.dout, dx, &gradients));
  c.aux_scale = 0;
  layer_run(&c, 1);
  assert_memory_equal(out, c.out, sizeof out);
  assert_memory_equal(dx, c.dx, sizeof dx);
  choir_layer_free(layer);
  layer_case_free(&c);
}

/* At first the cut-offs themselves, then their mean as by its definition. */
static void a_layer_learns_thresholds(void **state) {
  layer_case c = layer_case_new("expert_choice", N, D, H, E);
  choir_layer *layer = causal_layer("expert_choice");
  choir_layer_weights w = {.router = c.router, .w1 = c.w1, .w2 = c.w2};
  float out[N * D], kept[E] = {9, 9, 9, 9, 9, 9}, causal[E] = {0};
  double sum[E] = {0}, weight = 0, decay = c.options.decay;
  test_fails(choir_layer_observe(layer, 0, kept), CHOIR_ERROR_ARGUMENT, "forward");
  test_fails(choir_layer_forward(layer, &w, N, c.x, NULL, NULL, 0, out), CHOIR_ERROR_ARGUMENT, "thresholds is NULL");
  for (int call = 0; call < 30; call++) {
    test_normal(c.x, N * D, 200 + (uint32_t)call);
    test_ok(choir_layer_forward(layer, &w, N, c.x, NULL, NULL, 1, out));
    layer_run(&c, 0);
    test_ok(choir_layer_observe(layer, (uint64_t)call, kept));
    weight = decay * weight + (1 - decay);
    for (int i = 0; i < E; i++) {
      sum[i] = decay * sum[i] + (1 - decay) * (double)c.counts.cutoff[i];
      if (!call) assert_true(kept[i] == c.counts.cutoff[i]);
      if (!(fabs((double)kept[i] - sum[i] / weight) < 1e-6)) fail_msg("call %d: %g", call, (double)kept[i]);
    }
  }
  w.thresholds = causal;
  test_ok(choir_layer_forward(layer, &w, N, c.x, NULL, NULL, 0, out));
  test_fails(choir_layer_observe(layer, 30, kept), CHOIR_ERROR_ARGUMENT, "not causal");
  choir_layer_free(layer);
  layer_case_free(&c);
}

/* A batch of padding alone has no cut-offs, also not those that another batch has left. */
static void padding_teaches_nothing(void **state) {
  uint8_t valid[N] = {0};
  for (int r = 0; ch_routers[r]; r++) {
    if (!ch_router_has_thresholds(ch_routers[r])) continue;
    layer_case c = layer_case_new(ch_router_names[r], N, D, H, E);
    choir_layer *layer = causal_layer(ch_router_names[r]);
    choir_layer_weights w = {.router = c.router, .w1 = c.w1, .w2 = c.w2};
    float out[N * D], kept[E] = {0}, before[E];
    test_ok(choir_layer_forward(layer, &w, N, c.x, NULL, NULL, 1, out));
    test_ok(choir_layer_observe(layer, 0, kept));
    memcpy(before, kept, sizeof kept);
    for (int call = 0; call < 2; call++) {
      test_normal(c.x, N * D, 300);
      test_ok(choir_layer_forward(layer, &w, N, c.x, NULL, call ? valid : NULL, 1, out));
    }
    test_ok(choir_layer_observe(layer, 1, kept));
    if (memcmp(kept, before, sizeof kept)) fail_msg("%s has learnt from padding", ch_router_names[r]);
    choir_layer_free(layer);
    layer_case_free(&c);
  }
}

/* One step that an optimizer skips must not move what lasts: 1, k and n rows of NaN, of +inf and of -inf, each in one
 * number or in all, and finite rows whose scores overflow. Rows that take no part may hold anything. */
static void nonfinite_steps_leave_the_state(void **state) {
  static const float bad[] = {NAN, INFINITY, -INFINITY};
  static const int rows[] = {1, N / E, N};
  uint8_t others[N];
  for (int r = 0; ch_routers[r]; r++) {
    if (!ch_router_has_thresholds(ch_routers[r])) continue;
    layer_case c = layer_case_new(ch_router_names[r], N, D, H, E);
    choir_layer *layer = causal_layer(ch_router_names[r]);
    float out[N * D], kept[E] = {0}, before[E], x[N * D], large[D * E];
    choir_layer_weights w = {.router = c.router, .w1 = c.w1, .w2 = c.w2, .thresholds = kept}, overflow = w;
    test_ok(choir_layer_forward(layer, &w, N, c.x, NULL, NULL, 1, out));
    test_ok(choir_layer_observe(layer, 0, kept));
    memcpy(before, kept, sizeof kept);
    for (int kind = 0; kind < 18; kind++) {
      int count = rows[kind % 3], width = kind / 9 ? D : 1;
      memcpy(x, c.x, sizeof x);
      for (int t = 0; t < N; t++) {
        others[t] = t >= count;
        for (int j = 0; j < width && t < count; j++) x[t * D + j] = bad[kind / 3 % 3];
      }
      test_ok(choir_layer_forward(layer, &w, N, x, NULL, NULL, 1, out));
      test_fails(choir_layer_observe(layer, 1, kept), CHOIR_ERROR_NUMERIC, "token 0 of the last forward");
      if (memcmp(kept, before, sizeof kept)) fail_msg("%s has learnt from kind %d", ch_router_names[r], kind);
      test_ok(choir_layer_forward(layer, &w, N, x, NULL, others, 1, out));
      test_ok(choir_layer_observe(layer, 1, kept));
      for (int i = 0; i < E; i++) assert_true(isfinite(kept[i]));
      memcpy(kept, before, sizeof kept);
    }
    for (int j = 0; j < D * E; j++) large[j] = j % 2 ? 3e38f : -3e38f;
    for (int j = 0; j < D; j++) x[(N - 1) * D + j] = j % 2 ? 3e38f : -3e38f;
    memcpy(x, c.x, sizeof x - D * sizeof *x);
    overflow.router = large;
    test_ok(choir_layer_forward(layer, &overflow, N, x, NULL, NULL, 1, out));
    test_fails(choir_layer_observe(layer, 1, kept), CHOIR_ERROR_NUMERIC, "score that is not finite");
    assert_memory_equal(kept, before, sizeof kept);
    choir_layer_free(layer);
    layer_case_free(&c);
  }
}

/* Every router that has a causal way: where tokens choose they need no thresholds. */
static void every_router_can_serve(void **state) {
  int32_t ids[N];
  for (int t = 0; t < N; t++) ids[t] = 7 * t;
  for (int r = 0; ch_routers[r]; r++) {
    if (is_dense(ch_router_names[r])) continue;
    const ch_router *router = ch_routers[r];
    layer_case c = layer_case_new(ch_router_names[r], N, D, H, E);
    choir_layer *layer = causal_layer(ch_router_names[r]);
    float given[E] = {0}, all[N * D], one[D];
    choir_layer_weights w = {
        .router = c.router, .w1 = c.w1, .w2 = c.w2, .thresholds = ch_router_has_thresholds(router) ? given : NULL};
    test_ok(choir_layer_forward(layer, &w, N, c.x, ids, NULL, 0, all));
    for (int t = 0; t < N; t += 7) {
      test_ok(choir_layer_forward(layer, &w, 1, c.x + t * D, ids + t, NULL, 0, one));
      assert_memory_equal(one, all + t * D, sizeof one);
    }
    choir_layer_free(layer);
    layer_case_free(&c);
  }
}

/* Draws go on by tokens from one training call to the next; the mask is that of the call, up to its last token; one
 * backward goes with a forward. */
static void consecutive_calls(void **state) {
  layer_case c = layer_case_new("switch_top1", N, D, H, E);
  choir_layer_weights w = {.router = c.router, .w1 = c.w1, .w2 = c.w2},
                      gradients = {.router = c.drouter, .w1 = c.dw1, .w2 = c.dw2};
  choir_layer_options o = CHOIR_LAYER_OPTIONS_INIT;
  float out[2][N * D], dx[N * D];
  uint8_t valid[N];
  memset(valid, 1, sizeof valid);
  o.tokens = N, o.d_model = D, o.d_hidden = H, o.experts = E;
  ch_router_spec spec = router_options("switch_top1");
  spec.jitter = 0.5, spec.capacity_factor = E;
  o.config = test_config_of(&spec);
  for (int k = 0; k < 2; k++) {
    choir_layer *layer;
    test_ok(choir_layer_create(&o, &layer));
    for (int part = 0; part <= k; part++)
      test_ok(choir_layer_forward(layer, &w, N / (1 + k), c.x, NULL, NULL, 1, out[k]));
    test_ok(choir_layer_forward(layer, &w, N, c.x, NULL, NULL, 1, out[k]));
    test_ok(choir_layer_backward(layer, &w, c.x, c.dout, dx, &gradients));
    test_fails(choir_layer_backward(layer, &w, c.x, c.dout, dx, &gradients), CHOIR_ERROR_ARGUMENT, "once");
    valid[N - 1] = k == 0;
    test_ok(choir_layer_forward(layer, &w, N, c.x, NULL, valid, 0, dx));
    assert_int_equal(dx[N * D - 1] != 0, k == 0);
    choir_layer_free(layer);
  }
  assert_memory_equal(out[0], out[1], sizeof *out);
  layer_case_free(&c);
}

/* What a model's steps and draws are for, a layer alone refuses in training. */
static void is_no_model(void **state) {
  static const char *const options[][2] = {{"expert_choice", "threshold_after"}, {"random", "consistency_weight"}};
  for (int i = 0; i < 2; i++) {
    layer_case c = layer_case_new(options[i][0], N, D, H, E);
    choir_layer_weights w = {.router = c.router, .w1 = c.w1, .w2 = c.w2};
    choir_layer_options o = CHOIR_LAYER_OPTIONS_INIT;
    choir_layer *layer;
    float out[N * D];
    int32_t ids[N] = {0};
    o.tokens = N, o.d_model = D, o.d_hidden = H, o.experts = E;
    ch_router_spec spec = router_options(options[i][0]);
    if (i)
      spec.consistency_weight = 0.5;
    else
      spec.threshold_after = 7;
    o.config = test_config_of(&spec);
    test_ok(choir_layer_create(&o, &layer));
    test_ok(choir_layer_forward(layer, &w, N, c.x, ids, NULL, 0, out));
    test_fails(choir_layer_forward(layer, &w, N, c.x, ids, NULL, 1, out), CHOIR_ERROR_ARGUMENT, options[i][1]);
    choir_layer_free(layer);
    layer_case_free(&c);
  }
}

/* Every token to every expert, where training has room for few: nothing is asked for that was not planned. (Arenas are
 * rounded up to 2 MiB: smaller sizes would hide it.) */
static void all_tokens_to_all_experts(void **state) {
  layer_case c = layer_case_new("expert_choice", 2048, 2, 2, 256);
  choir_layer_options o = CHOIR_LAYER_OPTIONS_INIT;
  choir_layer *layer;
  choir_route_stats stats;
  float given[256], out[2 * 2048];
  o.tokens = 2048, o.d_model = o.d_hidden = 2, o.experts = 256, o.causal = 1;
  c.options.capacity_factor = 8;
  o.config = test_config_of(&c.options);
  for (int i = 0; i < 256; i++) given[i] = -1;
  test_ok(choir_layer_create(&o, &layer));
  choir_layer_weights w = {.router = c.router, .w1 = c.w1, .w2 = c.w2, .thresholds = given};
  test_ok(choir_layer_forward(layer, &w, 2048, c.x, NULL, NULL, 0, out));
  test_ok(choir_layer_get_route_stats(layer, &stats));
  assert_int_equal(stats.assignments, 2048 * 256);
  choir_route_stats_clear(&stats);
  choir_layer_free(layer);
  layer_case_free(&c);
}

TEST_MAIN(NULL, NULL, routes_a_matrix, a_layer_serves_by_thresholds, a_layer_learns_thresholds, padding_teaches_nothing,
          nonfinite_steps_leave_the_state, every_router_can_serve, consecutive_calls, is_no_model,
          all_tokens_to_all_experts)
