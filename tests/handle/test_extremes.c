/* Numbers at the end of their range, and batches with nothing in them: each ends in a defined way. */
#include "choir/choir.h"
#include "model/config.h"
#include "program.h"

#define RESUME "choir train --threads 1 --resume --out fast "

/* A rate of 1e30 is refused by name. At the largest rate allowed Adafactor's weights overflow (each step multiplies
 * them): the run stops, naming the step and the tensor, its checkpoints stay, and it resumes with another rate to the
 * bytes of an undisturbed run. AdamW's weights grow by so much a step, and may last. */
static void rates_that_no_weight_survives(void **state) {
  static const char *const settings[] = {"--set optimizer=adafactor", "--set optimizer=adamw",
                                         "--set optimizer=adamw --set clip_norm=1",
                                         "--set optimizer=adafactor --set train.compute=bf16 --emulate-bf16"};
  for (int i = 0; i < 4; i++) {
    const char *bf16 = strstr(settings[i], "bf16") ? "--emulate-bf16" : "";
    program_must(
        "rm -rf fast slow; choir train --threads 1 --config config.json --data data --set eval_every=0 --set "
        "steps=8 --set checkpoint_every=4 --out fast %s && cp -r fast slow",
        settings[i]);
    program_refuses(1, "train.learning_rate is 1e30", RESUME "--set learning_rate=1e30 %s", bf16);
    int status = program_run(RESUME "--set learning_rate=1000 --set steps=40 --set checkpoint_every=0 %s", bf16);
    if (status != 1 && (status || strstr(settings[i], "adafactor")))
      fail_msg("%s: status %d: %s", settings[i], status, program_output);
    if (status && !strstr(program_output, "first tensor that is not finite"))
      fail_msg("%s: it says: %s", settings[i], program_output);
    if (!status) program_must("rm -r fast/checkpoints/00000040");
    program_must(RESUME "--set learning_rate=0.01 --set steps=12 --set checkpoint_every=4 %s", bf16);
    program_must("choir train --threads 1 --resume --out slow --set learning_rate=0.01 --set steps=12 %s", bf16);
    assert_true(
        program_same("fast/checkpoints/00000012/model.safetensors", "slow/checkpoints/00000012/model.safetensors"));
    assert_true(
        program_same("fast/checkpoints/00000012/state.safetensors", "slow/checkpoints/00000012/state.safetensors"));
  }
}

/* bf16 ends where fp32 does, but its products round up into infinity: an error, and no harm to what comes later. */
static void bf16_that_overflows(void **state) {
  choir_config config;
  choir_model *model;
  choir_forward_result before, result;
  choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
  int32_t tokens[32];
  for (int t = 0; t < 32; t++) tokens[t] = t * 7 % 300;
  test_ok(ch_config_load("config.json", &config));
  config.model.vocab_size = 300;
  run.compute = "bf16", run.emulate_bf16 = 1, run.threads = 1;
  test_ok(choir_model_create(&config, 1, &run, &model));
  test_ok(choir_model_forward(model, 2, 16, tokens, NULL, 1, &before));
  for (int i = 0; i < choir_model_parameter_count(model); i++) {
    choir_parameter p;
    test_ok(choir_model_parameter_at(model, i, &p));
    if (!p.gradient) continue;
    int64_t count = p.shape[0] * (p.dims > 1 ? p.shape[1] : 1) * (p.dims > 2 ? p.shape[2] : 1);
    float *values = test_new(count);
    test_ok(choir_model_get_parameter(model, i, 0, values));
    float kept = values[0];
    values[0] = 3.4e38f; /* rounds to infinity */
    test_ok(choir_model_set_parameter(model, i, values));
    int code = choir_model_forward(model, 2, 16, tokens, NULL, 1, &result);
    if (code ? code != CHOIR_ERROR_NUMERIC : !isfinite(result.loss))
      fail_msg("%s: code %d, loss %g: %s", p.name, code, result.loss, choir_error_message());
    values[0] = kept;
    test_ok(choir_model_set_parameter(model, i, values));
    free(values);
    test_ok(choir_model_forward(model, 2, 16, tokens, NULL, 1, &result));
    if (!(result.loss == before.loss)) fail_msg("%s: loss %.17g, before %.17g", p.name, result.loss, before.loss);
  }
  choir_model_free(model);
}

/* ---- one layer, every router */

enum { N = 12, D = 8, H = 8, E = 4 };

typedef struct layer_arrays {
  float router[D * E], w1[E * D * H], w2[E * D * H], x[N * D], out[N * D], dout[N * D], dx[N * D];
  float g_router[D * E], g_w1[E * D * H], g_w2[E * D * H];
  int32_t tokens[N];
  uint8_t valid[N];
} layer_arrays;

static void normal(float *x, int count, uint32_t sub) { test_normal(x, count, sub); }

/* Forward, backward and statistics of a layer whose scores are all the same, or whose tokens are all padding. */
static void run_layer(const char *router, layer_arrays *a, int equal, int padding, int threads,
                      choir_route_stats *stats) {
  choir_layer *layer;
  choir_layer_options o = CHOIR_LAYER_OPTIONS_INIT;
  const ch_router_spec spec = test_router(router);
  o.config = test_config_of(&spec);
  o.tokens = N, o.d_model = D, o.d_hidden = H, o.experts = E, o.threads = threads;
  if (!strcmp(router, "dense")) o.experts = 1;
  memset(a, 0, sizeof *a);
  normal(a->router, D * E, 1), normal(a->w1, E * D * H, 2), normal(a->w2, E * D * H, 3);
  normal(a->x, N * D, 4), normal(a->dout, N * D, 5);
  if (equal) memset(a->router, 0, sizeof a->router);
  for (int t = 0; t < N; t++) a->tokens[t] = t, a->valid[t] = !padding;
  for (int i = 0; i < N * D; i++) a->out[i] = a->dx[i] = NAN;
  const choir_layer_weights w = {.router = a->router, .w1 = a->w1, .w2 = a->w2},
                            g = {.router = a->g_router, .w1 = a->g_w1, .w2 = a->g_w2};
  test_ok(choir_layer_create(&o, &layer));
  test_ok(choir_layer_forward(layer, &w, N, a->x, a->tokens, a->valid, 1, a->out));
  test_ok(choir_layer_get_route_stats(layer, stats));
  test_ok(choir_layer_backward(layer, &w, a->x, a->dout, a->dx, &g));
  choir_layer_free(layer);
}

static int all_finite(const layer_arrays *a) {
  int finite = 1;
  for (int i = 0; i < N * D; i++) finite &= isfinite(a->out[i]) && isfinite(a->dx[i]);
  for (int i = 0; i < D * E; i++) finite &= isfinite(a->g_router[i]);
  for (int i = 0; i < E * D * H; i++) finite &= isfinite(a->g_w1[i]) && isfinite(a->g_w2[i]);
  return finite;
}

/* Ties go to the lower token, or expert: the same choice every time, on any number of threads. */
static void all_scores_equal(void **state) {
  static layer_arrays a, b;
  const char *const *names = choir_router_names();
  for (; *names; names++) {
    choir_route_stats one, two;
    run_layer(*names, &a, 1, 0, 1, &one);
    run_layer(*names, &b, 1, 0, 2, &two);
    if (!all_finite(&a)) fail_msg("%s: not finite", *names);
    if (memcmp(&a, &b, sizeof a)) fail_msg("%s: two threads choose otherwise", *names);
    if (!strcmp(*names, "expert_choice")) { /* all experts take the first k tokens */
      assert_int_equal(one.histogram[E], one.capacity);
      assert_int_equal(one.histogram[0], N - one.capacity);
      for (int t = one.capacity; t < N; t++)
        for (int i = 0; i < D; i++) assert_true(a.out[t * D + i] == 0);
    }
    choir_route_stats_clear(&one), choir_route_stats_clear(&two);
  }
}

/* Nothing goes in, nothing comes out, and no weight gets a gradient. */
static void nothing_but_padding(void **state) {
  static layer_arrays a;
  const char *const *names = choir_router_names();
  for (; *names; names++) {
    choir_route_stats stats;
    run_layer(*names, &a, 0, 1, 1, &stats);
    double sum = 0;
    for (int i = 0; i < N * D; i++) sum += fabs(a.out[i]) + fabs(a.dx[i]);
    for (int i = 0; i < D * E; i++) sum += fabs(a.g_router[i]);
    for (int i = 0; i < E * D * H; i++) sum += fabs(a.g_w1[i]) + fabs(a.g_w2[i]);
    if (!(sum == 0)) fail_msg("%s: %g came out of padding", *names, sum);
    if (stats.tokens || stats.assignments || !isfinite(stats.gate_mass))
      fail_msg("%s: %lld tokens, gate mass %g", *names, (long long)stats.tokens, stats.gate_mass);
    choir_route_stats_clear(&stats);
  }
}

TEST_MAIN(program_setup, program_directory_remove, rates_that_no_weight_survives, bf16_that_overflows, all_scores_equal,
          nothing_but_padding)
