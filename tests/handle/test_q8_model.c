/* Models with weights of 8 bits: close to fp32, equal to the reference, and refused where weights must be exact. */
#include "choir/trainer.h"
#include "handle/model.h"
#include "model/config.h"
#include "testing.h"

enum { B = 2, T = 16, V = 50 };

static void make(choir_config *config, const char *compute, const char *backend, int threads, choir_model **model) {
  ch_config_default(config);
  test_set(config, "layers=2 d_model=64 d_hidden=96 heads=4 experts=4 vocab_size=%d", V);
  test_set(config, "moe_every=2 expert_activation=swiglu router.name=topk sequence_length=%d batch_sequences=%d", T, B);
  choir_model_options o = CHOIR_MODEL_OPTIONS_INIT;
  o.compute = compute;
  o.backend = backend;
  o.threads = threads;
  test_ok(choir_model_create(config, 3, &o, model));
}

static void run(const char *compute, const char *backend, int threads, float *logits) {
  choir_config config;
  choir_model *model;
  choir_forward_result result;
  int32_t token[B * T];
  for (int i = 0; i < B * T; i++) token[i] = i * 7 % V;
  make(&config, compute, backend, threads, &model);
  test_ok(choir_model_forward(model, B, T, token, logits, 0, &result));
  choir_model_free(model);
}

static void logits_are_close(void **state) {
  (void)state;
  float exact[B * T * V], got[B * T * V], other[B * T * V];
  run("fp32", "cpu", 1, exact);
  run("q8_0", "cpu", 1, got);
  run("q8_0", "cpu", 3, other);
  assert_memory_equal(got, other, sizeof got);
  test_close(got, exact, B * T * V, 0.1);
  assert_true(test_error(got, exact, B * T * V) > 1e-5); /* it was rounded */
  run("q8_0", "reference", 1, other);
  test_close(got, other, B * T * V, 0.01);
}

static void exact_weights_are_refused(void **state) {
  (void)state;
  choir_config config;
  choir_model *model;
  choir_trainer *trainer;
  choir_forward_result result;
  int32_t token[B * T] = {0};
  make(&config, "q8_0", "cpu", 1, &model);
  test_fails(choir_trainer_create(model, NULL, &trainer), CHOIR_ERROR_UNSUPPORTED, "'q8_0' is for inference");
  test_fails(choir_model_forward(model, B, T, token, NULL, 1, &result), CHOIR_ERROR_UNSUPPORTED, "not for gradients");
  test_fails(choir_model_save(model, NULL, "q8-model"), CHOIR_ERROR_UNSUPPORTED, "not for saving");
  choir_model_free(model);
}

/* A parameter gives the values of its blocks, and takes others. */
static void parameters(void **state) {
  (void)state;
  choir_config config;
  choir_model *exact, *model;
  make(&config, "fp32", "cpu", 1, &exact);
  make(&config, "q8_0", "cpu", 1, &model);
  for (int i = 0; i < choir_model_parameter_count(model); i++) {
    const ch_param *p = &model->net.params.p[i];
    real *want = test_new(p->whole), *got = test_new(p->whole);
    test_ok(choir_model_get_parameter(exact, i, 0, want));
    test_ok(choir_model_get_parameter(model, i, 0, got));
    test_close(got, want, p->whole, p->w8 ? 0.005 : 0);
    test_ok(choir_model_set_parameter(model, i, got));
    test_ok(choir_model_get_parameter(model, i, 0, want));
    assert_memory_equal(got, want, (size_t)p->whole * sizeof *got);
    want[0] = (real)NAN;
    if (p->w8) test_fails(choir_model_set_parameter(model, i, want), CHOIR_ERROR_NUMERIC, "element 0 is nan");
    free(want), free(got);
  }
  choir_model_free(exact), choir_model_free(model);
}

/* What choir info says before a model is loaded is what its weights take: of large models about a quarter of fp32. */
static void memory_is_told(void **state) {
  (void)state;
  static const struct {
    const char *set;
    double max; /* of fp32 */
  } models[] = {{"layers=2 d_model=64 d_hidden=96 heads=4 experts=4 moe_every=2 position=relative tied=true", 1},
                {"layers=8 d_model=768 d_hidden=1536 heads=12 experts=8 moe_every=1 position=rope tied=true", 0.28},
                {"layers=12 d_model=768 d_hidden=512 heads=12 experts=64 moe_every=1 position=rope tied=true", 0.28}};
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    choir_config config;
    choir_config_costs costs;
    choir_model *model;
    ch_config_default(&config);
    test_set(&config, "%s kv_heads=4 vocab_size=2048 router.name=topk", models[i].set);
    test_set(&config, "activation=swiglu expert_activation=swiglu sequence_length=512 batch_sequences=1");
    test_ok(choir_config_get_costs(&config, &costs));
    assert_true((double)costs.serve_q8_0_bytes < models[i].max * (double)costs.serve_bytes);
    choir_model_options o = CHOIR_MODEL_OPTIONS_INIT;
    o.compute = "q8_0";
    test_ok(ch_model_create(&config, &o, &model)); /* untouched memory takes none */
    int64_t width = 4 * config.model.d_model / config.model.heads;
    int64_t cache = (int64_t)sizeof(float) * 2 * config.model.layers * width * 512;
    assert_int_equal(costs.serve_q8_0_bytes, (int64_t)model->weights.used + cache);
    choir_model_free(model);
  }
}

TEST_MAIN(NULL, NULL, logits_are_close, exact_weights_are_refused, parameters, memory_is_told)
