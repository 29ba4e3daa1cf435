/* Routers that choir has never seen (choir/plugin.h): two that do what choir's own do, bit for bit, and others that do
 * what nobody may. */
#include <unistd.h>

#include "base/hash.h"
#include "model/config.h"
#include "model_testing.h"
#include "plugin_routers.h"

enum { N = 24, E = 4 };

static const struct {
  const char *own, *choirs;
} twins[] = {{"own_ec", "expert_choice"}, {"own_top2", "topk"}, {"own_bias", "bias_balanced"}};
enum { TWINS = sizeof twins / sizeof *twins };

static int register_twins(void **state) {
  register_plugin_routers();
  return 0;
}

static void same_matrix(void **state) {
  float scores[N * E], gates[2][N * E], dgates[N * E], dscores[2][N * E];
  uint8_t valid[N];
  fill_scores(scores, N, E, 1);
  fill_scores(dgates, N, E, 2);
  for (int t = 0; t < N; t++) valid[t] = t % 5 != 3;
  for (int i = 0; i < TWINS; i++)
    for (int variant = 0; variant < 4; variant++) {
      for (int j = 0; j < 2; j++) {
        ch_router_spec o = test_router(j ? twins[i].choirs : twins[i].own);
        o.normalize_gates = variant & 1;
        o.score = CH_SOFTMAX;
        choir_route_request r = {
            .config = test_config_of(&o), .n = N, .e = E, .scores = scores, .valid = variant & 2 ? valid : NULL};
        test_ok(choir_route(&r, gates[j], NULL));
        test_ok(choir_route_backward(&r, dgates, i == 2 ? 0 : 0.5, dscores[j]));
      }
      assert_memory_equal(gates[0], gates[1], sizeof gates[0]);
      assert_memory_equal(dscores[0], dscores[1], sizeof dscores[0]);
    }
}

/* All weights and what routers keep, after three steps of two micro-batches; then losses in evaluation, by the router's
 * own rule and by thresholds. */
static uint64_t training_hash(const char *router, int threads, int ranked) {
  choir_config c = model_config(router);
  test_set(&c, "accumulate=2 shards=4 steps=9 router.score=softmax");
  choir_model_options run = {.size = sizeof run, .threads = threads};
  choir_model *model;
  choir_trainer *trainer;
  choir_trainer_result r;
  choir_forward_result f[2] = {{0}};
  static int32_t tokens[2 * MODEL_B * MODEL_T];
  test_ok(choir_model_create(&c, 5, &run, &model));
  test_ok(choir_trainer_create(model, NULL, &trainer));
  model_tokens(tokens, 2 * MODEL_B * MODEL_T, 4);
  for (int s = 0; s < 3; s++) test_ok(choir_trainer_step(trainer, tokens, NULL, &r));
  choir_trainer_free(trainer);
  for (int by = 0; by < 2; by++) {
    if (by && ranked) test_ok(choir_model_set_routing(model, "threshold"));
    test_ok(choir_model_forward(model, MODEL_B, MODEL_T, tokens, NULL, 0, &f[by]));
  }
  uint64_t h = XXH64(model->weights.base, model->weights.size, 0);
  const double losses[] = {r.loss, r.aux_loss, r.gradient_norm, f[0].loss, f[1].loss};
  choir_model_free(model);
  return XXH64(losses, sizeof losses, h);
}

static void same_training(void **state) {
  for (int i = 0; i < TWINS; i++) {
    uint64_t of = training_hash(twins[i].choirs, 2, !i);
    if (training_hash(twins[i].own, 2, !i) != of || training_hash(twins[i].own, 1, !i) != of)
      fail_msg("%s is not %s", twins[i].own, twins[i].choirs);
  }
}

/* Two micro-batches of different padding, so that their mean counts. */
static choir_trainer_result lossy_step(const char *router, const char *weight) {
  choir_config c = model_config(router);
  test_set(&c, "accumulate=2 router.score=softmax router.aux_loss_weight=%s", weight);
  choir_model *model = model_fresh(&c);
  choir_trainer *trainer;
  choir_trainer_result r;
  static int32_t tokens[2 * MODEL_B * MODEL_T];
  model_tokens(tokens, 2 * MODEL_B * MODEL_T, 4);
  test_ok(choir_trainer_create(model, NULL, &trainer));
  test_ok(choir_trainer_step(trainer, tokens, NULL, &r));
  choir_trainer_free(trainer);
  choir_model_free(model);
  return r;
}

/* A loss of its own has the value, weight and gradient of the load-balancing loss that it repeats. */
static void loss_of_its_own(void **state) {
  choir_trainer_result own = lossy_step("own_balance", "10"), topk = lossy_step("topk", "10");
  assert_null(strstr(choir_notices(), "adds a loss"));
  choir_trainer_result without = lossy_step("own_balance", "0");
  assert_non_null(strstr(choir_notices(), "router 'own_balance' adds a loss, and model.router.aux_loss_weight is 0"));
  assert_true(topk.aux_loss > 1 && fabs(own.aux_loss / topk.aux_loss - 1) < 1e-6);
  assert_true(fabs(own.gradient_norm / topk.gradient_norm - 1) < 1e-5);
  assert_true(fabs(without.gradient_norm / topk.gradient_norm - 1) > 1e-3 && without.aux_loss == 0);
  float scores[N * E], dscores[2][N * E];
  uint8_t valid[N];
  fill_scores(scores, N, E, 1);
  for (int t = 0; t < N; t++) valid[t] = t % 5 != 3;
  for (int j = 0; j < 2; j++) {
    const ch_router_spec o = test_router(j ? "topk" : "own_balance");
    choir_route_request r = {.config = test_config_of(&o), .n = N, .e = E, .scores = scores, .valid = valid};
    test_ok(choir_route_backward(&r, NULL, 0.5, dscores[j]));
  }
  for (int i = 0; i < N * E; i++) assert_true(fabsf(dscores[0][i] - dscores[1][i]) < 1e-7f);
  assert_true(dscores[0][0] > 0);
}

/* ---- what is refused */

static int wrong; /* what `misbehave` does; 0: nothing */
enum { FINE, TWO, PADDING, CROWD, ERROR, PEEK, MOODY };

static int misbehave(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  static int calls;
  best_experts(context, call, chosen);
  if (wrong == TWO) chosen[0] = 2;
  for (int t = 0; t < call->n && wrong == PADDING; t++)
    if (!call->valid[t]) chosen[(int64_t)t * call->e] = 1;
  if (wrong == CROWD) memset(chosen, 1, (size_t)call->e);
  if (wrong == ERROR) strcpy(call->message, "there is no tea");
  if (wrong == PEEK && call->n > 9 && call->scores[9 * call->e] > 0.5f) {
    memset(chosen + 3 * call->e, 0, (size_t)call->e);
    chosen[3 * call->e] = 1;
  }
  if (wrong == MOODY && calls++ % 2) memset(chosen, 0, (size_t)call->e);
  return wrong == ERROR;
}

static int bad_gates(void *context, const choir_plugin_call *call, const uint8_t *chosen, float *gates) {
  for (int i = 0; i < call->n * call->e; i++) gates[i] = wrong ? NAN : 0.25f;
  return 0;
}

static int bad_loss(void *context, const choir_plugin_call *call, const uint8_t *chosen, double *loss,
                    float *gradient) {
  *loss = wrong == 1 ? NAN : 1;
  gradient[call->n * call->e - 1] = NAN; /* of padding */
  if (wrong == 2) gradient[7] = INFINITY;
  strcpy(call->message, "there is no tea");
  return wrong == 3;
}

/* Routes with a router; gives the code, the message being choir's. */
static int route_with(const choir_plugin_router *router, float *gates) {
  float scores[N * E];
  uint8_t valid[N];
  memset(valid, 1, sizeof valid);
  valid[N - 1] = 0;
  fill_scores(scores, N, E, 3);
  test_ok(choir_router_register(router));
  const ch_router_spec o = test_router(router->name);
  choir_route_request r = {.config = test_config_of(&o), .n = N, .e = E, .scores = scores, .valid = valid};
  return choir_route(&r, gates, NULL);
}

static void invalid_results_are_refused(void **state) {
  static const char *const says[] = {NULL,     "chosen[0,0] is 2",  "padding",    "token 0 has 4 experts",
                                     "no tea", "scores of token 9", "asked again"};
  choir_plugin_router router = own_top2;
  float gates[N * E];
  router.name = "wayward";
  router.choose = misbehave;
  for (wrong = FINE; wrong <= MOODY; wrong++) {
    int code = route_with(&router, gates);
    if (!says[wrong] ? code : !code || !strstr(choir_error_message(), says[wrong]))
      fail_msg("%d: %d, %s", wrong, code, choir_error_message());
    if (says[wrong]) assert_non_null(strstr(choir_error_message(), "wayward"));
  }
  router.gates = bad_gates;
  wrong = FINE;
  test_ok(route_with(&router, gates));
  int taken = 0;
  for (int i = 0; i < N * E; i++) assert_true(gates[i] == 0 || gates[i] == 0.25f), taken += gates[i] != 0;
  assert_int_equal(taken, 2 * (N - 1));
  router.choose = best_experts;
  wrong = 1;
  assert_int_equal(route_with(&router, gates), CHOIR_ERROR_NUMERIC);
  assert_non_null(strstr(choir_error_message(), "gate of token 0"));
  static const char *const lost[] = {NULL, "its loss is nan", "the loss's gradient of token 1 at expert 3", "no tea"};
  router.gates = NULL, router.loss = bad_loss;
  for (wrong = 0; wrong <= 3; wrong++) {
    int code = route_with(&router, gates);
    if (!lost[wrong] ? code : !code || !strstr(choir_error_message(), lost[wrong])) fail_msg("%d: %d", wrong, code);
  }
  router = own_ec;
  router.name = "crowded";
  router.choose = misbehave;
  wrong = CROWD;
  router.capacity_factor = 0.5;
  assert_int_equal(route_with(&router, gates), CHOIR_ERROR_ARGUMENT);
  assert_non_null(strstr(choir_error_message(), "its capacity is 3"));
  wrong = FINE;
}

/* A step that somebody's router breaks names router and layer, and moves no weight. */
static void ends_the_step(void **state) {
  choir_plugin_router router = own_top2;
  router.name = "wayward";
  router.choose = misbehave;
  wrong = FINE;
  test_ok(choir_router_register(&router));
  choir_trainer *trainer;
  choir_trainer_result r;
  int32_t tokens[MODEL_B * MODEL_T];
  choir_model *model = model_after_step("wayward", tokens, &trainer);
  uint64_t before = XXH64(model->weights.base, model->weights.size, 0);
  wrong = ERROR;
  assert_int_equal(choir_trainer_step(trainer, tokens, NULL, &r), CHOIR_ERROR_ARGUMENT);
  assert_string_equal(choir_error_message(), "layer 1: router 'wayward': there is no tea");
  choir_forward_result f;
  choir_trainer_free(trainer);
  assert_true(before == XXH64(model->weights.base, model->weights.size, 0));
  assert_int_equal(choir_model_forward(model, MODEL_B, MODEL_T, tokens, NULL, 0, &f), CHOIR_ERROR_ARGUMENT);
  wrong = FINE;
  test_ok(choir_model_forward(model, MODEL_B, MODEL_T, tokens, NULL, 0, &f));
  choir_model_free(model);
}

static void refused(const choir_plugin_router *router, const char *message) {
  assert_int_equal(choir_router_register(router), CHOIR_ERROR_ARGUMENT);
  if (!strstr(choir_error_message(), message)) fail_msg("%s: %s", message, choir_error_message());
}

static void definitions(void **state) {
  choir_plugin_router r = own_ec;
  r.name = "expert_choice";
  refused(&r, "one of choir's own");
  r.name = "a name";
  refused(&r, "letters, digits");
  r.name = "fresh", r.choose = NULL;
  refused(&r, "choose is NULL");
  r.choose = best_tokens, r.capacity_factor = 0;
  refused(&r, "capacity_factor is 0");
  r.capacity_factor = 2;
  r.options[0] = (choir_plugin_option){.name = "cap", .value = 1};
  refused(&r, "an option of choir's");
  r.options[0] = (choir_plugin_option){.name = "share", .value = 2, .high = 1};
  refused(&r, "by default: must be a number from 0 to 1");
  r.options[0].value = 1, r.options[1] = r.options[0];
  refused(&r, "two options 'share'");
  r.options[1] = (choir_plugin_option){0};
  r.observe = move_prices;
  refused(&r, "served with thresholds");
  r.observe = NULL, r.choices = 2, r.aux_loss_weight = INFINITY;
  refused(&r, "aux_loss_weight is inf");
  r.choices = 0, r.aux_loss_weight = 0, r.file = "absent.c";
  assert_int_equal(choir_router_register(&r), CHOIR_ERROR_IO);
  r.version = "1";
  test_ok(choir_router_register(&r));
  r.version = "2";
  test_ok(choir_router_register(&r));
  r.file = "other.c"; /* of one version, too: it may be another router */
  refused(&r, "router 'fresh': absent.c has one of that name, and other.c another");
  r.file = NULL;
  refused(&r, "router 'fresh': absent.c has one of that name, and the program another");
  r.reserved[2] = 1;
  assert_int_equal(choir_router_register(&r), CHOIR_ERROR_UNSUPPORTED);
}

/* Own options in configs: set, written, read, out of bounds; and a config of a router that is not there. */
static void options(void **state) {
  choir_plugin_router r = own_ec;
  char path[] = "/tmp/test_plugin_XXXXXX";
  r.name = "keen";
  r.options[0] = (choir_plugin_option){.name = "share", .help = "of it", .value = 0.5, .high = 1};
  r.options[1] = (choir_plugin_option){.name = "tilt", .value = -3};
  test_ok(choir_router_register(&r));
  choir_config c = model_config("expert_choice"), back;
  assert_int_equal(choir_config_set(&c, "router.share", "0.25"), CHOIR_ERROR_ARGUMENT);
  test_set(&c, "router.name=keen router.share=0.25 model.router.tilt=7");
  assert_int_equal(choir_config_set(&c, "router.share", "1.5"), CHOIR_ERROR_ARGUMENT);
  assert_string_equal(choir_error_message(), "model.router.share is 1.5: must be a number from 0 to 1");
  assert_int_equal(choir_config_set(&c, "share", "much"), CHOIR_ERROR_ARGUMENT);
  test_ok(choir_config_check(&c));
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  test_ok(choir_config_save(&c, path));
  test_ok(ch_config_load(path, &back));
  assert_memory_equal(&c.model.router, &back.model.router, sizeof c.model.router);
  assert_true(back.model.router.plugin_options[0] == 0.25 && back.model.router.plugin_options[1] == 7);
  back.model.router.plugin_options[2] = 1;
  assert_int_equal(choir_config_check(&back), CHOIR_ERROR_ARGUMENT);
  choir_field option;
  int count = choir_router_option_count("keen");
  test_ok(choir_router_option_at("keen", count - 2, &option));
  assert_string_equal(strrchr(option.key, '.') + 1, "share");
  assert_string_equal(option.value, "0.5");
  assert_int_equal(choir_router_option_at("keen", count, &option), CHOIR_ERROR_ARGUMENT);
  FILE *file = fopen(path, "w");
  fputs("{\"model\": {\"router\": {\"name\": \"absent\", \"share\": 0.25}}}", file);
  fclose(file);
  assert_int_equal(ch_config_load(path, &back), CHOIR_ERROR_UNSUPPORTED);
  assert_non_null(strstr(choir_error_message(), "--plugin"));
  unlink(path);
}

/* The two kinds of definition, and what each refuses. */
static void kinds(void **state) {
  choir_experts_choose experts = {.common = {.size = sizeof experts, .name = "kind", .choose = best_tokens},
                                  .depends_on = CHOIR_DEPENDS_ON_ALL,
                                  .capacity_factor = 2};
  choir_tokens_choose tokens = {.common = {.size = sizeof tokens, .name = "kind", .choose = best_experts},
                                .experts_per_token = 2};
  choir_router_info info;
  test_ok(choir_router_register_tokens(&tokens));
  test_ok(choir_router_describe("kind", &info));
  assert_true(info.choices == 2 && info.state == CHOIR_STATE_NONE && info.loss == CHOIR_LOSS_BALANCE);
  test_ok(choir_router_register_experts(&experts));
  test_ok(choir_router_describe("kind", &info));
  assert_true(info.choices == 0 && info.state == CHOIR_STATE_CUTOFFS && info.loss == CHOIR_LOSS_NONE);
  experts.depends_on = CHOIR_DEPENDS_ON_NONE;
  test_fails(choir_router_register_experts(&experts), CHOIR_ERROR_ARGUMENT, "depends_on is 0");
  experts.depends_on = CHOIR_DEPENDS_ON_ALL, experts.common.aux_loss_weight = 0.1;
  test_fails(choir_router_register_experts(&experts), CHOIR_ERROR_ARGUMENT, "it has no loss");
  experts.common.size = 8 + sizeof experts;
  struct {
    choir_experts_choose known;
    int64_t later;
  } later = {experts, 0};
  later.known.common.aux_loss_weight = 0;
  test_ok(choir_router_register_experts(&later.known));
  later.later = 1;
  test_fails(choir_router_register_experts(&later.known), CHOIR_ERROR_UNSUPPORTED, "does not know yet");
  tokens.depends_on = CHOIR_DEPENDS_ON_ALL, tokens.observe = move_prices;
  test_fails(choir_router_register_tokens(&tokens), CHOIR_ERROR_ARGUMENT, "served with thresholds");
  tokens.depends_on = CHOIR_DEPENDS_ON_ALL_IN_TRAINING, tokens.experts_per_token = 0, tokens.capacity_factor = 1;
  test_fails(choir_router_register_tokens(&tokens), CHOIR_ERROR_ARGUMENT, "need experts_per_token");
  tokens.observe = NULL;
  test_ok(choir_router_register_tokens(&tokens));
  tokens.capacity_factor = 0;
  test_fails(choir_router_register_tokens(&tokens), CHOIR_ERROR_ARGUMENT, "capacity_factor is 0");
  tokens.common.size = 0;
  test_fails(choir_router_register_tokens(&tokens), CHOIR_ERROR_ARGUMENT, "size is 0");
}

TEST_MAIN(register_twins, NULL, same_matrix, same_training, loss_of_its_own, invalid_results_are_refused, ends_the_step,
          definitions, options, kinds)
