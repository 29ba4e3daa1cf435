/* A router that reads ids of tokens (choir/plugin.h) and does what `hash` does, bit for bit; one that reads another
 * token's is refused. Gates of a router's own. */
#include "choir/plugin.h"
#include "model_testing.h"

enum { N = 24, E = 4 };

static int peeks; /* at the id of token 0 */
static int by_id(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  for (int t = 0; t < call->n; t++)
    for (int j = 0; j < call->choices && call->valid[t]; j++)
      chosen[t * call->e + (call->tokens[peeks ? 0 : t] + j) % call->e] = 1;
  return 0;
}

static int route(const char *router, int choices, const int32_t *tokens, float *gates) {
  float scores[N * E] = {0};
  uint8_t valid[N];
  for (int t = 0; t < N; t++) valid[t] = t % 5 != 3;
  ch_router_spec o = test_router(router);
  if (choices) o.experts_per_token = choices;
  choir_route_request asked = {
      .config = test_config_of(&o), .n = N, .e = E, .scores = scores, .tokens = tokens, .valid = valid};
  return choir_route(&asked, gates, NULL);
}

static void ids(void **state) {
  choir_plugin_router r = {
      .name = "own_hash", .choices = 1, .choices_default = 1, .reads = CHOIR_READS_IDS, .choose = by_id};
  float gates[2][N * E];
  int32_t tokens[N];
  for (int t = 0; t < N; t++) tokens[t] = (t * 37 + 11) % 90;
  test_ok(choir_router_register(&r));
  test_ok(route("own_hash", 0, tokens, gates[0]));
  test_ok(route("hash", 0, tokens, gates[1]));
  assert_memory_equal(gates[0], gates[1], sizeof gates[0]);
  test_ok(route("own_hash", 2, tokens, gates[0]));
  for (int t = 0; t < N; t++)
    for (int i = 0; i < E; i++)
      assert_true(gates[0][t * E + i] == (t % 5 != 3 && (i + E - tokens[t] % E) % E < 2 ? 0.5f : 0));
  test_fails(route("own_hash", 0, NULL, gates[0]), CHOIR_ERROR_ARGUMENT, "token ids");
  peeks = 1;
  test_ok(choir_router_register(&r));
  test_fails(route("own_hash", 0, tokens, gates[0]), CHOIR_ERROR_ARGUMENT, "experts of token");
}

static void definitions(void **state) {
  choir_plugin_router r = {.name = "random", .choices = 1, .reads = CHOIR_READS_IDS, .choose = by_id};
  test_fails(choir_router_register(&r), CHOIR_ERROR_ARGUMENT, "one of choir's own");
  r.name = "ids", r.choices = 0, r.capacity_factor = 1;
  test_fails(choir_router_register(&r), CHOIR_ERROR_ARGUMENT, "need experts_per_token");
  r.choices = 1, r.looks = CHOIR_LOOKS_BACK;
  test_fails(choir_router_register(&r), CHOIR_ERROR_ARGUMENT, "served with thresholds");
  r.looks = CHOIR_LOOKS_NOWHERE, r.reads = CHOIR_READS_LOGITS;
  test_fails(choir_router_register(&r), CHOIR_ERROR_ARGUMENT, "reads is 3");
  r.reads = CHOIR_READS_IDS, r.normalize_gates = 1;
  test_fails(choir_router_register(&r), CHOIR_ERROR_ARGUMENT, "normalize_gates is 1");
}

static int first(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  for (int t = 0; t < call->n; t++) chosen[t * call->e] = call->valid[t];
  return 0;
}

static int quarter(void *context, const choir_plugin_call *call, const uint8_t *chosen, float *gates) {
  for (int i = 0; i < call->n * call->e; i++) gates[i] = 0.25f;
  return 0;
}

/* Gates of a router's own count as they are. */
static void not_divided(void **state) {
  choir_plugin_router r = {.name = "weighed", .choices = 1, .choose = first, .gates = quarter, .normalize_gates = 1};
  test_fails(choir_router_register(&r), CHOIR_ERROR_ARGUMENT, "normalize_gates");
  r.normalize_gates = 0, r.looks = CHOIR_LOOKS_BACK;
  test_fails(choir_router_register(&r), CHOIR_ERROR_ARGUMENT, "leave observe, gates");
  r.looks = CHOIR_LOOKS_NOWHERE;
  test_ok(choir_router_register(&r));
  float scores[N * E] = {0}, gates[N * E];
  ch_router_spec o = test_router("weighed");
  choir_route_request asked = {.config = test_config_of(&o), .n = N, .e = E, .scores = scores};
  test_ok(choir_route(&asked, gates, NULL));
  for (int i = 0; i < N * E; i++) assert_true(gates[i] == (i % E ? 0 : 0.25f));
  o.normalize_gates = 1;
  asked.config = test_config_of(&o);
  test_fails(choir_route(&asked, gates, NULL), CHOIR_ERROR_ARGUMENT, "normalize_gates");
}

static void in_a_model(void **state) {
  int32_t tokens[MODEL_B * MODEL_T];
  choir_forward_result f[2];
  peeks = 0;
  model_tokens(tokens, MODEL_B * MODEL_T, 4);
  for (int i = 0; i < 2; i++) {
    choir_config c = model_config(i ? "hash" : "own_hash");
    choir_model *model = model_fresh(&c);
    test_ok(choir_model_forward(model, MODEL_B, MODEL_T, tokens, NULL, 0, &f[i]));
    choir_model_free(model);
  }
  assert_true(f[0].loss == f[1].loss);
}

TEST_MAIN(NULL, NULL, ids, definitions, not_divided, in_a_model)
