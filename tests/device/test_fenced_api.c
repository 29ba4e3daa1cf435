/* The public interface on memory that the host cannot touch, beside the CPU: passes, routings that are looked at,
 * generation, layers, the bench. And what happens to a host that touches it. */
#include <sys/wait.h>

#include "bench/bench.h"
#include "fenced.h"
#include "model_testing.h"
#include "moe_testing.h"

enum { TOKENS = MODEL_B * MODEL_T, LOGITS = TOKENS * MODEL_V, WORDS = 2 };
static const char *const backends[2] = {"cpu", "fenced"}, *const computes[2] = {"fp32", "bf16"};

static void same(const void *a, const void *b, size_t bytes, const char *what, const char *router) {
  if (memcmp(a, b, bytes)) fail_msg("%s of router %s differ", what, router);
}

/* A callback saw these numbers of all layers, one behind the other. */
typedef struct {
  double sum;
  int calls;
} sighting;

static void look(void *context, const choir_routing *r) {
  sighting *s = context;
  s->calls++;
  for (int i = 0; i < r->experts; i++) {
    s->sum = s->sum * 0.75 + r->demand[i];
    for (int slot = r->expert_begin[i]; slot < r->expert_begin[i + 1]; slot++)
      s->sum = s->sum * 0.75 + (double)r->slot_gate[slot] * (1 + r->slot_token[slot] % 17);
    if (r->thresholds) s->sum += (double)r->thresholds[i];
    if (r->cutoffs && isfinite(r->cutoffs[i])) s->sum += (double)r->cutoffs[i];
  }
  for (int t = 0; t < r->tokens; t++) {
    s->sum = s->sum * 0.75 + r->token[t];
    for (int at = r->token_begin[t]; at < r->token_begin[t + 1]; at++) s->sum = s->sum * 0.75 + r->token_slot[at] % 13;
    for (int i = 0; r->scores && i < r->experts; i++) s->sum = s->sum * 0.75 + (double)r->scores[t * r->experts + i];
  }
}

static void compare_parameters(choir_model *const model[2], int gradients, const char *router) {
  for (int i = 0; i < choir_model_parameter_count(model[0]); i++) {
    choir_parameter p, q;
    int64_t count = 1;
    test_ok(choir_model_parameter_at(model[0], i, &p));
    test_ok(choir_model_parameter_at(model[1], i, &q));
    assert_string_equal(p.name, q.name);
    assert_non_null(p.data);
    assert_null(q.data);
    for (int k = 0; k < p.dims; k++) count *= p.shape[k];
    float *values[2] = {test_new(count), test_new(count)};
    for (int b = 0; b < 2; b++) test_ok(choir_model_get_parameter(model[b], i, gradients && p.gradient, values[b]));
    if (!gradients || p.gradient) same(values[0], values[1], (size_t)count * sizeof(float), p.name, router);
    free(values[0]), free(values[1]);
  }
}

static void forward_both(choir_model *const model[2], int gradients, const char *router) {
  static float logits[2][LOGITS];
  static int32_t token[TOKENS];
  choir_forward_result result[2] = {0};
  sighting seen[2] = {0};
  model_tokens(token, TOKENS, 3);
  for (int b = 0; b < 2; b++) {
    choir_model_on_routing(model[b], look, &seen[b]);
    test_ok(choir_model_forward(model[b], MODEL_B, MODEL_T, token, logits[b], gradients, &result[b]));
    choir_model_on_routing(model[b], NULL, NULL);
  }
  same(logits[0], logits[1], sizeof logits[0], "logits", router);
  same(&result[0], &result[1], sizeof result[0], "losses", router);
  same(&seen[0], &seen[1], sizeof seen[0], "routings", router);
  assert_int_equal(seen[0].calls, 2);
  for (int moe = 0; moe < 2; moe++) {
    choir_route_stats stats[2];
    for (int b = 0; b < 2; b++) test_ok(choir_model_get_route_stats(model[b], moe, &stats[b]));
    assert_int_equal(stats[0].assignments, stats[1].assignments);
    same(stats[0].demand, stats[1].demand, MODEL_E * sizeof(int64_t) / (size_t)(strcmp(router, "dense") ? 1 : MODEL_E),
         "demands", router);
    for (int b = 0; b < 2; b++) choir_route_stats_clear(&stats[b]);
  }
  compare_parameters(model, gradients, router);
}

static void generate_both(choir_model *const model[2], const char *router) {
  static int32_t token[20];
  choir_prompt prompt[3] = {
      {.tokens = token, .count = 5}, {.tokens = token + 5, .count = 1}, {.tokens = token, .count = 12}};
  choir_generate_options o = CHOIR_GENERATE_OPTIONS_INIT;
  choir_generate_result result[2];
  o.max_tokens = 8, o.temperature = 1, o.seed = 3, o.batch = 2, o.chunk = 7;
  model_tokens(token, 20, 4);
  for (int b = 0; b < 2; b++) test_ok(choir_generate(model[b], NULL, prompt, 3, &o, &result[b]));
  for (int i = 0; i < 3; i++)
    same(result[0].sequences[i].tokens, result[1].sequences[i].tokens, 8 * sizeof(int32_t), "tokens", router);
  for (int b = 0; b < 2; b++) choir_generate_result_clear(&result[b]);
}

static void models(void **state) {
  fence_watch();
  for (int r = 0; ch_routers[r]; r++)
    for (int word = 0; word < (r % 4 ? 1 : WORDS); word++) {
      const char *router = ch_routers[r]->name;
      choir_config config = model_config(router);
      choir_model *model[2];
      if (word || !strcmp(router, "base")) test_modern(&config);
      for (int b = 0; b < 2; b++) model[b] = model_new(&config, backends[b], computes[word]);
      forward_both(model, 1, router);
      for (int b = 0; b < 2; b++) test_ok(choir_model_set_routing(model[b], "threshold"));
      forward_both(model, 0, router);
      generate_both(model, router);
      /* So low that most tokens pass at most experts: they then go through these in several parts. */
      for (int b = 0; b < 2; b++) test_thresholds(model[b], 0.01, 0.001);
      forward_both(model, 0, router);
      for (int b = 0; b < 2; b++) choir_model_free(model[b]);
    }
}

enum { N = 60, D = 24, H = 40, E = 6 };

typedef struct {
  float x[N * D], router[D * E], w1[E * D * H], w2[E * D * H], thresholds[E], dout[N * D];
  float out[N * D], dx[N * D], drouter[D * E], dw1[E * D * H], dw2[E * D * H];
  int64_t load[E];
} layer_values;

static void fill(float *x, int count, uint32_t sub) {
  for (int i = 0; i < count; i++) x[i] = (float)ch_rng_normal(ch_rng_make(2, CH_STREAM_TEST, sub), (uint64_t)i) / 4;
}

static void use_layer(const char *router, const char *backend, layer_values *v) {
  choir_layer_options o = CHOIR_LAYER_OPTIONS_INIT;
  choir_layer *layer;
  choir_route_stats stats;
  int32_t token[N];
  uint8_t valid[N];
  int e = strcmp(router, "dense") ? E : 1, keeps = ch_router_has_thresholds(ch_router_find(router));
  *v = (layer_values){0};
  fill(v->x, N * D, 1), fill(v->router, D * E, 2), fill(v->w1, E * D * H, 3), fill(v->w2, E * D * H, 4);
  fill(v->dout, N * D, 5);
  for (int t = 0; t < N; t++) token[t] = t * 7 % 31, valid[t] = t % 9 != 4;
  o.tokens = N, o.d_model = D, o.d_hidden = H, o.experts = e, o.causal = 1, o.backend = backend, o.seed = 8;
  const ch_router_spec spec = test_router(router);
  o.config = test_config_of(&spec);
  test_ok(choir_layer_create(&o, &layer));
  choir_layer_weights w = {.router = v->router, .w1 = v->w1, .w2 = v->w2, .thresholds = v->thresholds},
                      g = {.router = v->drouter, .w1 = v->dw1, .w2 = v->dw2};
  for (uint64_t call = 0; call < 2; call++) {
    test_ok(choir_layer_forward(layer, &w, N - (int)call, v->x, token, valid, 1, v->out));
    test_ok(choir_layer_backward(layer, &w, v->x, v->dout, v->dx, &g));
    if (keeps) test_ok(choir_layer_observe(layer, call, v->thresholds));
  }
  test_ok(choir_layer_get_route_stats(layer, &stats));
  memcpy(v->load, stats.load, (size_t)e * sizeof *v->load);
  choir_route_stats_clear(&stats);
  test_ok(choir_layer_forward(layer, &w, N, v->x, token, NULL, 0, v->out));
  choir_layer_free(layer);
}

static void layers(void **state) {
  fence_watch();
  static layer_values values[2];
  for (int r = 0; ch_routers[r]; r++) {
    for (int b = 0; b < 2; b++) use_layer(ch_routers[r]->name, backends[b], &values[b]);
    same(&values[0], &values[1], sizeof values[0], "layers", ch_routers[r]->name);
  }
}

static void agrees(const char *problem, double within) {
  ch_bench_options o = {.threads = 2, .repetitions = 1, .seconds = 1e-9, .backend = "fenced"};
  ch_bench_result r;
  test_ok(ch_bench_run(problem, &o, &r));
  if (!(r.error >= 0 && r.error < within)) fail_msg("%s: error %g", problem, r.error);
}

static void bench(void **state) {
  fence_watch();
  static const char *const problems[] = {"moe n=256 d=32 h=64 e=8 c=2",
                                         "moe n=256 d=32 h=64 e=8 router=gshard_top2",
                                         "moe n=256 d=32 h=64 e=8 router=base compute=fp32",
                                         "route n=512 e=8 d=32 h=64",
                                         "assign n=256 e=8 d=32 h=64",
                                         "gemm m=64 n=48 k=32 tb=1",
                                         "attention B=1 T=64 H=2 dh=16",
                                         "head n=64 d=32 V=300",
                                         "gelu count=5000",
                                         "rmsnorm n=64 d=32",
                                         "select n=512 e=8 k=64",
                                         "gather n=256 d=32 e=8 k=32",
                                         "adafactor batch=2 rows=32 cols=48"};
  for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) agrees(problems[i], 1e-4);
}

static void bench_of_models(void **state) {
  fence_watch();
  static const char *const problems[] = {"step config=" CHOIR_SOURCE_DIR "/configs/pico.json B=2 T=32",
                                         "decode config=" CHOIR_SOURCE_DIR "/configs/pico.json prompt=8 tokens=4",
                                         "prompt config=" CHOIR_SOURCE_DIR "/configs/pico.json tokens=32"};
  for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) agrees(problems[i], 1e-3);
  assert_int_equal(fence_areas, 0);
}

/* In a child, whose end and last words come back. */
static void expect_death(void (*touch)(choir_model *), choir_model *model, const char *name) {
  char said[512] = "";
  int pipes[2], status;
  assert_int_equal(pipe(pipes), 0);
  fflush(NULL);
  pid_t child = fork();
  if (!child) {
    dup2(pipes[1], 2);
    fence_watch();
    touch(model);
    _exit(0);
  }
  close(pipes[1]);
  ssize_t size = read(pipes[0], said, sizeof said - 1);
  close(pipes[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != FENCE_EXIT || size <= 0 || !strstr(said, name))
    fail_msg("status %d, and not \"%s\" but: %s", status, name, said);
}

static volatile real sink;
static void read_weight(choir_model *model) {
  sink = *ch_params_find(&model->net.params, "layers.1.moe.router.weight")->w;
}
static void write_gradient(choir_model *model) {
  ch_params_find(&model->net.params, "layers.0.attn.q.weight")->g[5] = 1;
}
static void read_tape(choir_model *model) { sink = *(real *)model->x.tape.base; }

static void host_access_to_device_memory_aborts(void **state) {
  choir_config config = model_config("expert_choice");
  choir_model *model = model_new(&config, "fenced", "fp32");
  test_ok(ch_model_make_gradients(model));
  for (int i = 0; i < model->net.params.count; i++) {
    const ch_param *p = &model->net.params.p[i];
    fence_name(p->w, (size_t)p->count * sizeof(real), p->name);
    fence_name(p->g, (size_t)p->count * sizeof(real), p->name);
  }
  expect_death(read_weight, model, "layers.1.moe.router.weight");
  expect_death(write_gradient, model, "layers.0.attn.q.weight");
  expect_death(read_tape, model, "'activations'");
  fence_tensors = 0;
  choir_model_free(model);
}

static void backends_are_known_by_name(void **state) {
  choir_config config = model_config("hash");
  choir_model_options run = {.size = sizeof run, .backend = "abacus"};
  choir_model *model;
  test_fails(choir_model_create(&config, 1, &run, &model), CHOIR_ERROR_ARGUMENT, "'abacus' is not in this build");
  assert_non_null(strstr(choir_error_message(), "cpu, reference, cuda, fenced"));
  assert_null(model);
  assert_int_equal(ch_backend_register(&fence_backend), CHOIR_ERROR_ARGUMENT);
  assert_string_equal(ch_backend_of_host()->name, "cpu");
}

static void fill_all_but_gather(ch_ops *ops, ch_compute compute) {
  fence_fill(ops, compute);
  ops->gather = NULL;
}

static void a_backend_without_an_op_is_refused(void **state) {
  static ch_backend torn;
  torn = fence_backend;
  torn.name = "torn";
  torn.fill = fill_all_but_gather;
  ch_exec x;
  test_ok(ch_backend_register(&torn));
  assert_int_equal(ch_exec_init(&x, "torn", CH_COMPUTE_FP32, 0, 1), CHOIR_ERROR_UNSUPPORTED);
  assert_string_equal(choir_error_message(), "backend 'torn': its `fill` sets no op 'gather'");
}

static int setup(void **state) { return ch_backend_register(&fence_backend); }

TEST_MAIN(setup, NULL, models, layers, bench, bench_of_models, host_access_to_device_memory_aborts,
          backends_are_known_by_name, a_backend_without_an_op_is_refused)
