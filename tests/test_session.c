/* Sessions: their logits against whole passes, and against themselves however tokens are cut and batched. */
#include "choir/choir.h"
#include "testing.h"

#define VECTORS CHOIR_SOURCE_DIR "/tests/vectors/"
enum { MOST = 4096 };

static choir_model *load(const char *router, const char *backend, const char *compute) {
  char path[512];
  choir_model *model;
  choir_run_options run = {.backend = backend, .compute = compute, .emulate_bf16 = 1, .threads = 2};
  snprintf(path, sizeof path, VECTORS "model/%s", router);
  test_ok(choir_model_load(path, &run, &model));
  test_ok(choir_model_set_routing(model, "threshold"));
  return model;
}

static choir_session *session_of(choir_model *model, int slots, int length, int chunk) {
  choir_session *session;
  test_ok(choir_session_create(model, &(choir_session_options){.slots = slots, .length = length, .chunk = chunk},
                               &session));
  return session;
}

/* Whole sequences of tokens.npy in one call of `all`, token by token, and in ragged pieces: what forward says. */
static void check_against_forward(const char *router, const char *backend, const choir_npy *tokens) {
  choir_model *model = load(router, backend, "fp32");
  int B = (int)tokens->shape[0], T = (int)tokens->shape[1], V = choir_model_config_of(model)->model.vocab_size;
  const int32_t *token = tokens->data;
  int64_t count = (int64_t)B * T * V;
  real *want = test_new(count), *got = test_new(count), *last = test_new((int64_t)B * V);
  choir_forward_result result;
  test_ok(choir_model_forward(model, B, T, token, want, 0, &result));
  for (int chunk = 1; chunk <= B * T + 1; chunk = 2 * chunk + 1) {
    choir_session *s = session_of(model, B, T, chunk);
    int counts[16];
    for (int b = 0; b < B; b++) counts[b] = T;
    test_poison(got, count);
    test_poison(last, (int64_t)B * V);
    test_ok(choir_session_advance(s, counts, token, last, got));
    test_close(got, want, count, 1e-5);
    for (int b = 0; b < B; b++) assert_memory_equal(last + b * V, got + ((int64_t)(b + 1) * T - 1) * V, (size_t)V * 4);
    choir_session_free(s);
  }
  free(want), free(got), free(last);
  choir_model_free(model);
}

static void equals_forward(void **state) {
  (void)state;
  choir_npy tokens;
  test_ok(choir_npy_read(VECTORS "tokens.npy", CHOIR_NPY_INT32, 2, &tokens));
  for (const char *const *router = choir_router_names(); *router; router++) {
    check_against_forward(*router, "cpu", &tokens);
    check_against_forward(*router, "reference", &tokens);
  }
  choir_npy_free(&tokens);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(equals_forward)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
