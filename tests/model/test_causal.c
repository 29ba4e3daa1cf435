/* The law of causal routings, for every router: the logits of a sequence are the same alone, in any batch, at any
 * place in it, and cut at any length. */
#include "model_testing.h"

enum { B = MODEL_B, T = MODEL_T, V = MODEL_V };

typedef struct {
  choir_model *model;
  const char *what;
  double tolerance;     /* 0: bit for bit */
  int32_t token[B * T]; /* the sequences, one after the other */
  float *alone;         /* [B,T,V] logits of each by itself */
  float *logits;        /* [B,T,V] of the last run */
} causal_case;

static void run(causal_case *c, int sequences, int length, const int32_t *token, float *logits) {
  choir_forward_result result;
  test_ok(choir_model_forward(c->model, sequences, length, token, logits, 0, &result));
}

/* Row `row` of the last run, of `length` tokens, is what sequence `which` is by itself. */
static void same(const causal_case *c, int row, int which, int length) {
  const float *got = c->logits + (int64_t)row * length * V, *want = c->alone + (int64_t)which * T * V;
  double error = test_error(got, want, (int64_t)length * V);
  if (c->tolerance == 0 ? memcmp(got, want, sizeof *got * (size_t)(length * V)) != 0 : !(error <= c->tolerance))
    fail_msg("%s: sequence %d, row %d of a batch, %d tokens: error %g", c->what, which, row, length, error);
}

/* Sequences order[0], order[1], ... cut to `length` tokens, together. */
static void in_a_batch(causal_case *c, int sequences, int length, const int *order) {
  int32_t token[B * T] = {0};
  for (int b = 0; b < sequences; b++)
    memcpy(token + b * length, c->token + order[b] * T, sizeof *token * (size_t)length);
  run(c, sequences, length, token, c->logits);
  for (int b = 0; b < sequences; b++) same(c, b, order[b], length);
}

static void check_law(causal_case *c) {
  static const int lengths[] = {1, 2, 7, T - 1}, sizes[] = {2, 5, B}, cuts[] = {1, 3};
  ch_rng r = ch_rng_make(3, CH_STREAM_TEST, 70);
  int order[B];
  model_tokens(c->token, B * T, 80);
  c->alone = test_new((int64_t)B * T * V);
  c->logits = test_new((int64_t)B * T * V);
  for (int b = 0; b < B; b++) run(c, 1, T, c->token + b * T, c->alone + (int64_t)b * T * V);
  for (int s = 0; s < 3; s++) {
    for (int b = 0; b < B; b++) order[b] = (int)ch_rng_permute(r, (uint64_t)((b + 3 * s) % B), B);
    in_a_batch(c, sizes[s], T, order);
  }
  for (int l = 0; l < 4; l++)
    for (int s = 0; s < 2; s++) in_a_batch(c, cuts[s], lengths[l], order);
  free(c->alone);
  free(c->logits);
}

static void check_routing(const char *router, const char *routing, const char *backend, int cap, double level,
                          double tolerance) {
  char what[128];
  choir_config config = model_config(router);
  if (cap) config.model.router.cap = cap;
  causal_case c = {.model = model_new(&config, backend, "fp32"), .what = what, .tolerance = tolerance};
  snprintf(what, sizeof what, "%s, %s on %s, cap %d, level %g", router, routing, backend, cap, level);
  if (level != 0) test_thresholds(c.model, level, 0);
  test_ok(choir_model_set_routing(c.model, routing));
  test_ok(choir_model_check_causal(c.model));
  check_law(&c);
  choir_model_free(c.model);
}

static int has(const char *router, const char *routing) {
  choir_routing_properties p;
  return choir_router_get_properties(router, routing, &p) == CHOIR_OK;
}

static void check_router(const char *router, const char *backend, int cap, double level, double tolerance) {
  check_routing(router, "threshold", backend, cap, level, tolerance);
}

static void bit_for_bit_where_rows_round_alike(void **state) {
  for (const char *const *router = choir_router_names(); *router; router++) {
    assert_true(has(*router, "threshold")); /* every router so far can be served */
    check_router(*router, "reference", 0, 0, 0);
  }
}

static void equal_up_to_rounding(void **state) {
  for (const char *const *router = choir_router_names(); *router; router++) check_router(*router, "cpu", 0, 0, 1e-5);
}

/* Where every token goes to every expert, more than there is room for at once, and batches are cut differently. */
static void in_parts_too(void **state) {
  for (int cap = 0; cap < 4; cap += 3) {
    const char *router = cap ? "capped_expert_choice" : "expert_choice";
    check_router(router, "reference", cap, -1, 0);
    check_router(router, "cpu", cap, -1, 1e-5);
    check_router(router, "reference", cap, 0.1, 0);
  }
}

TEST_MAIN(NULL, NULL, bit_for_bit_where_rows_round_alike, equal_up_to_rounding, in_parts_too)
