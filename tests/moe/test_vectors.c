/* choir's models and optimizers against an independent reference: tests/vectors/make.py wrote what is compared here, in
 * double, without choir's code. Everything goes in through the public API (the optimizers through the table of ops), on
 * every backend. Routers by themselves are compared with vectors/, in Python. */
#include "choir/choir.h"
#include "moe/router.h"
#include "npy/npy.h"
#include "testing.h"

#define VECTORS CHOIR_SOURCE_DIR "/tests/vectors/"

static const char *const backends[] = {"reference", "cpu", NULL};

/* The tensor PREFIX.KEY, or NULL. */
static const choir_tensor *find(const choir_tensors *file, const char *prefix, const char *key) {
  char name[160];
  snprintf(name, sizeof name, "%s.%s", prefix, key);
  return choir_tensors_find(file, name);
}

static const void *data_of(const choir_tensors *file, const char *prefix, const char *key) {
  const choir_tensor *t = find(file, prefix, key);
  if (!t) fail_msg("vectors have no tensor %s.%s", prefix, key);
  return t->data;
}

/* test_close, but the message says which case on which backend. */
static void close_case(const float *got, const void *want, int64_t count, double tolerance, const char *name,
                       const char *what) {
  char text[200];
  snprintf(text, sizeof text, "%s %s", name, what);
  test_close_at(got, want, count, tolerance, text, __FILE__, __LINE__);
}

static void close_number(double got, double want, double tolerance, const char *name, const char *what) {
  if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want))))
    fail_msg("%s: %s is %.9g, wanted %.9g", name, what, got, want);
}

static void check_model(const char *router, const char *backend, const ch_npy *tokens) {
  char path[512];
  choir_tensors *expected;
  snprintf(path, sizeof path, VECTORS "model/%s/expected.safetensors", router);
  test_ok(choir_tensors_load(path, 1, &expected));
  choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
  run.compute = "fp32", run.backend = backend;
  choir_model *model;
  snprintf(path, sizeof path, VECTORS "model/%s", router);
  test_ok(choir_model_load(path, &run, &model, NULL));

  const choir_tensor *logits = choir_tensors_find(expected, "logits");
  int64_t count = logits->shape[0] * logits->shape[1] * logits->shape[2];
  float *got = test_new(count);
  choir_forward_result result = {.loss = NAN, .aux_loss = NAN};
  for (int gradients = 0; gradients < 2; gradients++) {
    test_poison(got, count);
    test_ok(choir_model_forward(model, (int)tokens->shape[0], (int)tokens->shape[1], tokens->data, got, gradients,
                                &result));
    const choir_tensor *all = choir_tensors_find(expected, "losses");
    const double *losses = all->data;
    close_number(result.loss, losses[0], 1e-6, router, "loss");
    close_number(result.aux_loss, losses[1], 1e-6, router, "aux_loss");
    close_number(result.z_loss, all->shape[0] > 2 ? losses[2] : 0, 1e-6, router, "z_loss");
    close_case(got, logits->data, count, 4e-6, router, "logits");
  }
  int parameters = choir_model_parameter_count(model), trained = 0;
  for (int i = 0; i < parameters; i++) {
    choir_parameter p;
    test_ok(choir_model_parameter_at(model, i, &p));
    if (!p.gradient) continue;
    trained++;
    const choir_tensor *want = choir_tensors_find(expected, p.name);
    if (!want || want->dims != p.dims) fail_msg("%s: the reference has no tensor '%s' of that shape", router, p.name);
    int64_t size = 1;
    for (int k = 0; k < p.dims; k++) assert_int_equal(p.shape[k], want->shape[k]), size *= p.shape[k];
    close_case(p.gradient, want->data, size, 2e-5, router, p.name);
  }
  assert_int_equal(trained, choir_tensors_count(expected) - 3);

  test_ok(choir_model_set_routing(model, "threshold"));
  test_poison(got, count);
  test_ok(choir_model_forward(model, (int)tokens->shape[0], (int)tokens->shape[1], tokens->data, got, 0, &result));
  close_case(got, choir_tensors_find(expected, "threshold_logits")->data, count, 4e-6, router, "threshold logits");
  free(got);
  choir_model_free(model);
  choir_tensors_free(expected);
}

static void models(void **state) {
  ch_npy tokens;
  test_ok(ch_npy_read(VECTORS "tokens.npy", CH_NPY_INT32, 2, &tokens));
  for (int b = 0; backends[b]; b++)
    for (const char *const *router = choir_router_names(); *router; router++)
      check_model(*router, backends[b], &tokens);
  ch_npy_free(&tokens);
}

static void buckets(void **state) {
  choir_tensors *file;
  test_ok(choir_tensors_load(VECTORS "buckets.safetensors", 1, &file));
  for (int i = 0; i < choir_tensors_count(file); i++) {
    const choir_tensor *t = choir_tensors_at(file, i);
    int count, far;
    assert_int_equal(sscanf(t->name, "%d.%d", &count, &far), 2);
    for (int j = 0; j < t->shape[0]; j++)
      assert_int_equal(ch_attention_bucket(j, count, far), ((const int32_t *)t->data)[j]);
  }
  choir_tensors_free(file);
}

/* Three steps of each; the settings stand in make.py's make_optimizers. */
static void check_optimizers(const choir_tensors *file, const char *name, const char *backend) {
  const choir_tensor *start = find(file, name, "w");
  const float *gradients = data_of(file, name, "g"), *adafactor = data_of(file, name, "adafactor"),
              *adamw = data_of(file, name, "adamw");
  int64_t batch = start->dims == 3 ? start->shape[0] : 1, cols = start->shape[start->dims - 1];
  int64_t rows = start->dims == 1 ? 1 : start->shape[start->dims - 2], count = batch * rows * cols;
  real *w = test_new(count), *w2 = test_new(count), *row = test_new(batch * rows), *col = test_new(batch * cols);
  real *m = test_new(count), *v = test_new(count), *g = test_new(count); /* a device cannot read the mapped file */
  memcpy(w, start->data, start->bytes), memcpy(w2, start->data, start->bytes);
  for (int t = 1; t <= 3; t++, gradients += count, adafactor += count, adamw += count) {
    memcpy(g, gradients, (size_t)count * sizeof *g);
    double beta2 = 0.99 * (1 - pow(0.99, t - 1)) / (1 - pow(0.99, t));
    ch_adafactor_args a = {.batch = batch,
                           .rows = rows,
                           .cols = cols,
                           .w = w,
                           .g = g,
                           .row = start->dims > 1 ? row : NULL,
                           .col = col,
                           .learning_rate = 0.05,
                           .beta2 = beta2,
                           .eps1 = 1e-30,
                           .eps2 = 1e-3,
                           .clip = 1,
                           .grad_scale = 0.5};
    ch_adamw_args b = {.count = count,
                       .w = w2,
                       .g = g,
                       .m = m,
                       .v = v,
                       .step = t,
                       .learning_rate = 0.02,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .eps = 1e-8,
                       .weight_decay = 0.1,
                       .grad_scale = 0.5};
    TEST_EXEC(backend, CH_COMPUTE_FP32, 2, x.ops->adafactor(&x, &a));
    TEST_EXEC(backend, CH_COMPUTE_FP32, 2, x.ops->adamw(&x, &b));
    close_case(w, adafactor, count, 1e-6, name, "adafactor");
    close_case(w2, adamw, count, 1e-6, name, "adamw");
  }
  free(w), free(w2), free(row), free(col), free(m), free(v), free(g);
}

static void optimizers(void **state) {
  static const char *const names[] = {"matrix", "experts", "vector", "tiny", NULL};
  choir_tensors *file;
  test_ok(choir_tensors_load(VECTORS "optimizers.safetensors", 1, &file));
  for (int b = 0; backends[b]; b++)
    for (int i = 0; names[i]; i++) check_optimizers(file, names[i], backends[b]);
  choir_tensors_free(file);
}

TEST_MAIN(NULL, NULL, buckets, models, optimizers)
