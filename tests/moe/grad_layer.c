/* The whole layer's gradient under every router, in double: x, Wg, W1, W2 of <dout, out> + aux_scale * aux_loss. */
#include "moe_testing.h"

enum { N = 22, D = 6, H = 9, E = 4, PROBES = 60 };

static double loss(layer_case *c) {
  layer_run(c, 0);
  return test_dot(c->dout, c->out, (int64_t)N * D) + (double)c->aux_scale * *c->counts.aux_loss;
}

static void expect(layer_case *c, const char *what, real *x, int64_t count, const real *gradient) {
  real *kept = copy_of(gradient, sizeof(real) * (size_t)count); /* every run of loss poisons gradients */
  double error = moe_gradient(c, loss, x, count, kept, PROBES);
  free(kept);
  if (!(error < 1e-7)) fail_msg("%s, training %d, %s: error %g", c->options.kind->name, c->training, what, error);
}

static void check(layer_case *c) {
  int64_t weights = (int64_t)c->e * D * H;
  const struct {
    const char *what;
    real *x, *gradient;
    int64_t count;
  } inputs[] = {{"x", c->x, c->dx, N * D},
                {"router", c->router, c->drouter, D * c->e},
                {"w1", c->w1, c->dw1, weights},
                {"w2", c->w2, c->dw2, weights},
                {"w3", c->w3, c->dw3, weights}};
  for (int i = 0; i < 4 + ch_gated(c->activation); i++) {
    layer_run(c, 1);
    int learned = ch_router_learned(c->options.kind);
    if (i != 1 || learned) expect(c, inputs[i].what, inputs[i].x, inputs[i].count, inputs[i].gradient);
  }
}

/* Wide and tight capacity, padding, pools, jitter and sampling, scores of both kinds. */
static void every_router(void **state) {
  int32_t ids[N];
  uint8_t mask[N];
  for (int t = 0; t < N; t++) {
    ids[t] = t * t % 17;
    mask[t] = t % 5 != 1;
  }
  for (int router = 0; ch_routers[router]; router++)
    for (int variant = 0; variant < 10; variant++) {
      if (variant >= 5 && !ch_router_takes(ch_routers[router], CH_OPTION_score)) continue;
      layer_case c = layer_case_new(ch_router_names[router], N, D, H, experts_for(ch_router_names[router], E));
      c.token = ids;
      c.T = 8;
      c.threads = 1; /* many small runs */
      c.valid = variant & 1 ? mask : NULL;
      c.options.capacity_factor = variant & 2 ? 0.8 : c.options.capacity_factor;
      if (is_dense(c.options.kind->name)) c.options.capacity_factor = 1;
      c.options.pool = variant & 1 ? CH_POOL_SEQUENCE : CH_POOL_BATCH;
      c.options.random_second = variant & 1;
      c.options.jitter = variant & 1 ? 0.3 : 0;
      if (variant >= 5) c.options.score = CH_SIGMOID;
      c.training = variant % 5 < 4; /* evaluation may be differentiated too */
      check(&c);
      layer_case_free(&c);
    }
}

/* Every pool, and tokens taken by thresholds: too few of them, too many, and as many as reach them. */
static void pools_and_thresholds(void **state) {
  static const char *const pools[] = {"batch", "sequence", "position", "group"};
  static const real thresholds[E] = {2, 0, (real)0.25, (real)0.3};
  uint8_t mask[N];
  for (int t = 0; t < N; t++) mask[t] = t % 5 != 1;
  for (int router = 0; ch_routers[router]; router++) {
    for (int variant = 0; variant < 10; variant++) {
      int by_threshold = variant >= 8;
      if (!ch_router_takes(ch_routers[router], by_threshold ? CH_OPTION_threshold_after : CH_OPTION_pool)) continue;
      layer_case c = layer_case_new(ch_router_names[router], N, D, H, E);
      c.T = 3; /* positions of 7 and 8 sequences */
      c.threads = 1;
      c.valid = variant & 1 ? mask : NULL;
      c.options.group_size = 9;
      c.options.pool = by_threshold ? CH_POOL_BATCH : ch_word_number(ch_router_pools, pools[variant / 2]);
      c.options.threshold_after = c.by_threshold = by_threshold;
      c.thresholds = thresholds;
      check(&c);
      if (by_threshold && !strcmp(c.options.kind->name, "expert_choice"))
        assert_true(c.record.expert_begin[2] - c.record.expert_begin[1] > 2 * c.record.expert_begin[1]);
      layer_case_free(&c);
    }
  }
}

/* Gates scaled to sum 1, by every router whose gates are scores. */
static void normalized_gates(void **state) {
  int32_t ids[N];
  uint8_t mask[N];
  int routers = 0;
  for (int t = 0; t < N; t++) ids[t] = t * t % 17, mask[t] = t % 5 != 1;
  for (int router = 0; ch_routers[router]; router++) {
    if (!ch_router_takes(ch_routers[router], CH_OPTION_normalize_gates)) continue;
    layer_case c = layer_case_new(ch_router_names[router], N, D, H, E);
    c.token = ids;
    c.T = 8;
    c.threads = 1;
    c.valid = mask;
    c.options.normalize_gates = 1;
    if (ch_router_takes(ch_routers[router], CH_OPTION_experts_per_token)) c.options.experts_per_token = 2;
    check(&c);
    for (int t = 0; t < N; t++) {
      real sum = 0;
      for (int i = c.record.token_begin[t]; i < c.record.token_begin[t + 1]; i++)
        sum += c.record.slot_gate[c.record.token_slot[i]];
      assert_true(c.record.token_begin[t] == c.record.token_begin[t + 1] ? sum == 0 : fabs(sum - 1) < 1e-14);
    }
    layer_case_free(&c);
    routers++;
  }
  assert_true(routers > 4);
}

/* Gates that scale what experts read, scaled to sum 1 or not. */
static void gates_on_input(void **state) {
  uint8_t mask[N];
  int routers = 0;
  for (int t = 0; t < N; t++) mask[t] = t % 5 != 1;
  for (int router = 0; ch_routers[router]; router++) {
    if (!ch_router_takes(ch_routers[router], CH_OPTION_gate_on)) continue;
    layer_case c = layer_case_new(ch_router_names[router], N, D, H, E);
    c.T = 8;
    c.threads = 1;
    c.valid = mask;
    c.activation = routers % 2 ? CH_SWIGLU : CH_GELU;
    c.options.normalize_gates = routers % 3 == 1 && ch_router_takes(ch_routers[router], CH_OPTION_normalize_gates);
    c.options.gate_on = CH_GATE_INPUT;
    check(&c);
    layer_case_free(&c);
    routers++;
  }
  assert_true(routers > 8);
}

/* Experts of every activation, with tokens of several experts, of none, and dropped ones. */
static void every_activation(void **state) {
  static const char *const routers[] = {"expert_choice", "switch_top1"};
  for (int router = 0; router < 2; router++)
    for (int activation = CH_GELU; activation <= CH_SWIGLU; activation++) {
      layer_case c = layer_case_new(routers[router], N, D, H, E);
      c.threads = 1;
      c.activation = (ch_activation)activation;
      c.options.capacity_factor = router ? 0.8 : 2;
      check(&c);
      layer_case_free(&c);
    }
}

/* Gradients of weights accumulate where that is asked for, dx is set. */
static void accumulates(void **state) {
  layer_case c = layer_case_new("gshard_top2", N, D, H, E);
  int64_t weights = (int64_t)E * D * H;
  c.activation = CH_SWIGLU;
  layer_run(&c, 1);
  real *once = copy_of(c.dw1, sizeof(real) * (size_t)weights);
  real *once3 = copy_of(c.dw3, sizeof(real) * (size_t)weights);
  ch_exec x;
  ch_moe_saved saved;
  ch_moe_args a = layer_args(&c);
  a.accumulate = 1;
  test_ok(ch_exec_init(&x, "reference", CH_COMPUTE_FP32, 0, 1));
  for (int pass = 0; pass < 2; pass++) {
    if (pass) test_ok(ch_exec_commit(&x));
    ch_moe_forward(&x, &a, &saved);
    ch_moe_backward(&x, &a, &saved);
    x.tape.used = 0;
  }
  ch_exec_free(&x);
  for (int64_t i = 0; i < weights; i++) once[i] *= 2, once3[i] *= 2;
  test_close(c.dw1, once, weights, 1e-13);
  test_close(c.dw3, once3, weights, 1e-13);
  free(once), free(once3);
  layer_case_free(&c);
}

TEST_MAIN(NULL, NULL, every_router, pools_and_thresholds, normalized_gates, gates_on_input, every_activation,
          accumulates)
