/* Whole models in float through the public handle: thread counts, compute types, saving and loading. */
#include <unistd.h>

#include "choir/choir.h"
#include "file/dir.h"
#include "model/config.h"
#include "testing.h"

enum { B = 4, T = 24, V = 96 };

static choir_config small_config(const char *router) {
  choir_config c;
  ch_config_default(&c);
  test_set(&c, "vocab_size=%d layers=4 d_model=64 d_hidden=96 heads=4 sequence_length=%d batch_sequences=%d", V, T, B);
  c.model.experts = strcmp(router, "dense") ? 8 : 1;
  c.model.router = test_router(router);
  return c;
}

static void fill(int32_t *token) {
  for (int i = 0; i < B * T; i++) token[i] = (int32_t)ch_rng_below(ch_rng_make(1, CH_STREAM_TEST, 3), (uint64_t)i, V);
}

/* Logits, then all gradients, of a fresh model: malloc'd, *count of them; the loss is returned. */
static double everything(const char *router, const char *compute, int threads, float **out, size_t *count) {
  choir_config config = small_config(router);
  choir_model_options run = {
      .size = sizeof run, .backend = "cpu", .compute = compute, .threads = threads, .emulate_bf16 = 1};
  choir_model *model;
  choir_forward_result result;
  int32_t token[B * T];
  fill(token);
  test_ok(choir_model_create(&config, 5, &run, &model));
  *count = B * T * V;
  for (int i = 0; i < choir_model_parameter_count(model); i++) {
    choir_parameter p;
    test_ok(choir_model_parameter_at(model, i, &p));
    *count += (size_t)(p.shape[0] * (p.dims > 1 ? p.shape[1] : 1) * (p.dims > 2 ? p.shape[2] : 1));
  }
  *out = malloc(*count * sizeof **out);
  test_ok(choir_model_forward(model, B, T, token, *out, 1, &result));
  float *at = *out + B * T * V;
  for (int i = 0; i < choir_model_parameter_count(model); i++) {
    choir_parameter p;
    test_ok(choir_model_parameter_at(model, i, &p));
    size_t size = (size_t)(p.shape[0] * (p.dims > 1 ? p.shape[1] : 1) * (p.dims > 2 ? p.shape[2] : 1));
    memcpy(at, p.gradient ? p.gradient : p.data, size * sizeof *at);
    at += size;
  }
  choir_model_free(model);
  return result.loss;
}

/* Loss, logits and gradients: the same bits for one, two and three threads, in both compute types. */
static void threads_agree(void **state) {
  static const char *const computes[] = {"fp32", "bf16"};
  for (const char *const *router = choir_router_names(); *router; router++)
    for (int c = 0; c < 2; c++) {
      float *one, *many;
      size_t count;
      double loss = everything(*router, computes[c], 1, &one, &count);
      for (int threads = 2; threads <= 3; threads++) {
        double again = everything(*router, computes[c], threads, &many, &count);
        assert_memory_equal(&loss, &again, sizeof loss);
        assert_memory_equal(one, many, count * sizeof *one);
        free(many);
      }
      free(one);
    }
}

/* bf16 rounds inputs to 8 bits: logits stay near, and are not the same. Dense, because selections may flip. */
static void bf16_is_near(void **state) {
  float *full, *half;
  size_t count;
  double a = everything("dense", "fp32", 2, &full, &count), b = everything("dense", "bf16", 2, &half, &count);
  double error = test_error(half, full, B * T * V),
         gradients = test_error(half + B * T * V, full + B * T * V, (int64_t)count - B * T * V);
  if (!(error < 0.03 && error > 1e-5 && gradients < 0.05 && fabs(a - b) < 0.01 * a))
    fail_msg("logits %g, gradients %g, losses %g %g", error, gradients, a, b);
  free(full);
  free(half);
}

/* A model, saved and loaded, computes the same bits, also in bf16 where weights have rounded copies. */
static void loads_what_it_saved(void **state) {
  char directory[] = "/tmp/choir-model-XXXXXX";
  assert_non_null(mkdtemp(directory));
  const char *path = CH_IN(directory, "saved");
  int32_t token[B * T];
  fill(token);
  for (int c = 0; c < 2; c++) {
    choir_config config = small_config("expert_choice");
    choir_model_options run = {.size = sizeof run, .backend = "cpu", .compute = c ? "bf16" : "fp32", .emulate_bf16 = 1};
    choir_model *made, *loaded;
    choir_forward_result x, y;
    test_ok(choir_model_create(&config, 5, &run, &made));
    test_ok(choir_model_forward(made, B, T, token, NULL, 0, &x));
    test_ok(choir_model_save(made, NULL, path));
    test_ok(choir_model_load(path, &run, &loaded, NULL));
    test_ok(choir_model_forward(loaded, B, T, token, NULL, 0, &y));
    assert_memory_equal(&x.loss, &y.loss, sizeof x.loss);
    choir_model_free(made);
    choir_model_free(loaded);
    test_ok(ch_dir_remove(path));
  }
  assert_int_equal(rmdir(directory), 0);
}

/* Positions do not see later ones where the router is causal; with expert choice they may, and that is what it says. */
static void looking_ahead_is_declared(void **state) {
  for (const char *const *router = choir_router_names(); *router; router++) {
    choir_config config = small_config(*router);
    choir_model *model;
    choir_forward_result result;
    int32_t token[B * T];
    float *before = malloc(B * T * V * sizeof *before), *after = malloc(B * T * V * sizeof *after);
    fill(token);
    test_ok(choir_model_create(&config, 5, NULL, &model));
    test_ok(choir_model_forward(model, B, T, token, before, 0, &result));
    for (int t = T / 2; t < T; t++) token[(B - 1) * T + t] = (token[(B - 1) * T + t] + 1) % V; /* ends the batch */
    test_ok(choir_model_forward(model, B, T, token, after, 0, &result));
    /* not bit for bit: experts with other numbers of tokens round their products otherwise */
    double error = test_error(after, before, (int64_t)((B - 1) * T + T / 2) * V);
    if (!choir_router_looks_across_tokens(test_config_of(&config.model.router), 0) && !(error < 1e-6))
      fail_msg("%s: %g", *router, error);
    if (!strcmp(*router, "expert_choice")) assert_true(error > 1e-4);
    choir_model_free(model);
    free(before);
    free(after);
  }
}

/* A loss that is not a number is an error that names the weight. */
static void names_what_is_not_finite(void **state) {
  choir_config config = small_config("expert_choice");
  choir_model *model;
  choir_parameter p;
  choir_forward_result result;
  int32_t token[B * T];
  fill(token);
  test_ok(choir_model_create(&config, 5, NULL, &model));
  test_ok(choir_model_parameter_at(model, 3, &p));
  p.data[1] = NAN;
  assert_int_equal(choir_model_forward(model, B, T, token, NULL, 0, &result), CHOIR_ERROR_NUMERIC);
  assert_non_null(strstr(choir_error_message(), p.name));
  choir_model_free(model);
}

/* A callback that uses its model gets an error. */
static void use_it_again(void *context, const choir_routing *routing) {
  choir_model *model = context;
  choir_forward_result result;
  choir_session *session;
  int32_t token[8] = {0};
  (void)routing;
  test_fails(choir_session_create(model, NULL, &session), CHOIR_ERROR_BUSY, "in use");
  test_fails(choir_model_forward(model, 1, 8, token, NULL, 0, &result), CHOIR_ERROR_BUSY, "in use");
  test_fails(choir_model_set_routing(model, NULL), CHOIR_ERROR_BUSY, "in use");
}

static void a_callback_does_not_use_its_model(void **state) {
  choir_config config = small_config("expert_choice");
  choir_model *model;
  choir_forward_result alone, shown;
  int32_t token[B * T];
  fill(token);
  test_ok(choir_model_create(&config, 5, NULL, &model));
  test_ok(choir_model_forward(model, B, T, token, NULL, 0, &alone));
  choir_model_on_routing(model, use_it_again, model);
  test_ok(choir_model_forward(model, B, T, token, NULL, 0, &shown));
  assert_true(shown.loss == alone.loss);
  choir_model_on_routing(model, NULL, NULL);
  test_ok(choir_model_forward(model, 1, 8, token, NULL, 0, &shown));
  choir_model_free(model);
}

/* It may take itself away, and sees no more layers then. */
typedef struct {
  choir_model *model;
  int calls;
} one_look;

static void look_once(void *context, const choir_routing *routing) {
  one_look *look = context;
  (void)routing;
  look->calls++;
  choir_model_on_routing(look->model, NULL, NULL);
}

static void callbacks_can_remove_themselves(void **state) {
  choir_config config = small_config("expert_choice");
  choir_forward_result result;
  int32_t token[B * T];
  one_look look = {0};
  fill(token);
  test_ok(choir_model_create(&config, 5, NULL, &look.model));
  choir_model_on_routing(look.model, look_once, &look);
  test_ok(choir_model_forward(look.model, B, T, token, NULL, 0, &result));
  assert_int_equal(look.calls, 1);
  choir_model_free(look.model);
}

TEST_MAIN(NULL, NULL, threads_agree, bf16_is_near, loads_what_it_saved, looking_ahead_is_declared,
          names_what_is_not_finite, a_callback_does_not_use_its_model, callbacks_can_remove_themselves)
