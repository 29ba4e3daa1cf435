/* Routers that rank tokens by numbers of their own (`rank` of choir/plugin.h): thresholds are learned from these and
 * compared with them. */
#include "choir/plugin.h"
#include "model_testing.h"
#include "plugin_routers.h"

enum { N = 24, E = 4 };

/* Every fifth token is padding. */
static void fill_valid(uint8_t *valid) {
  for (int t = 0; t < N; t++) valid[t] = t % 5 != 3;
}

typedef struct {
  float cutoffs[E];
  int load[E];
} seen_routing;

static void see(void *context, const choir_routing *r) {
  seen_routing *seen = context;
  if (r->cutoffs) memcpy(seen->cutoffs, r->cutoffs, sizeof seen->cutoffs);
  for (int i = 0; i < E; i++) seen->load[i] = r->expert_begin[i + 1] - r->expert_begin[i];
}

/* Cut-offs of a ranking, as thresholds of the same tokens, give every expert as many as it took; the same tokens, if
 * the router takes those of the highest ranking. */
static void cutoffs_serve_as_many_tokens(void **state) {
  float scores[N * E], gates[2][N * E];
  uint8_t valid[N];
  fill_valid(valid);
  test_ok(choir_router_register_experts(&own_min));
  for (int sign = -1; sign <= 1; sign += 2)
    for (int seed = 0; seed < 8; seed++) {
      ch_router_spec o = test_router("own_min");
      o.plugin_options[0] = sign;
      fill_scores(scores, N, E, 10 + (uint64_t)seed);
      seen_routing chosen, served;
      choir_route_request r = {
          .config = test_config_of(&o), .n = N, .e = E, .scores = scores, .valid = seed % 2 ? valid : NULL};
      test_ok(choir_route_visit(&r, see, &chosen));
      test_ok(choir_route(&r, gates[0], NULL));
      r.thresholds = chosen.cutoffs;
      test_ok(choir_route_visit(&r, see, &served));
      test_ok(choir_route(&r, gates[1], NULL));
      assert_memory_equal(chosen.load, served.load, sizeof chosen.load);
      assert_int_equal(!memcmp(gates[0], gates[1], sizeof gates[0]), sign < 0);
    }
}

/* An expert that takes nobody has no cut-off, and one that takes all tokens the lowest ranking. */
static int first_takes_all(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  for (int t = 0; t < call->n; t++) chosen[t * call->e] = call->valid[t];
  return 0;
}

static void cutoffs_of_none_and_all(void **state) {
  choir_experts_choose r = own_min;
  float scores[N * E], highest = 0;
  uint8_t valid[N];
  seen_routing seen;
  fill_valid(valid);
  fill_scores(scores, N, E, 4);
  r.common.name = "first", r.common.choose = first_takes_all, r.capacity_factor = E;
  test_ok(choir_router_register_experts(&r));
  const ch_router_spec o = test_router("first");
  choir_route_request q = {.config = test_config_of(&o), .n = N, .e = E, .scores = scores, .valid = valid};
  test_ok(choir_route_visit(&q, see, &seen));
  for (int t = 0; t < N; t++)
    if (valid[t]) highest = fmaxf(highest, scores[t * E]);
  assert_true(seen.cutoffs[0] == -highest);
  for (int i = 1; i < E; i++) assert_true(seen.load[i] == 0 && isinf(seen.cutoffs[i]));
}

/* Tokens that choose at most K experts are served with the K largest margins of the ranking. */
static void margins_under_a_cap(void **state) {
  enum { K = 2 };
  choir_tokens_choose r = {
      .common = own_min.common, .depends_on = CHOIR_DEPENDS_ON_ALL, .experts_per_token = K, .capacity_factor = E};
  r.common.size = sizeof r, r.common.name = "capped", r.common.choose = best_experts;
  const float thresholds[E] = {-0.9f, -0.3f, -0.5f, -0.7f};
  float scores[N * E], gates[N * E];
  int limited = 0;
  test_ok(choir_router_register_tokens(&r));
  const ch_router_spec o = test_router("capped");
  fill_scores(scores, N, E, 6);
  choir_route_request q = {.config = test_config_of(&o), .n = N, .e = E, .scores = scores, .thresholds = thresholds};
  test_ok(choir_route(&q, gates, NULL));
  for (int t = 0; t < N; t++) {
    int reached = 0;
    for (int i = 0; i < E; i++) {
      float margin = -scores[t * E + i] - thresholds[i];
      int above = 0;
      for (int j = 0; j < E; j++) above += -scores[t * E + j] - thresholds[j] > margin;
      reached += margin >= 0;
      assert_true(gates[t * E + i] == (margin >= 0 && above < K ? scores[t * E + i] : 0));
    }
    limited += reached > K;
  }
  assert_true(limited);
}

/* A ranking of scores is none: assignments, cut-offs, gradients, training and its thresholds have the same bits. A
 * ranking of other numbers changes nothing but cut-offs. */
static void batch_routing_is_unchanged(void **state) {
  static const struct {
    const char *name;
    int (*choose)(void *context, const choir_plugin_call *call, uint8_t *chosen);
    double sign;
    int same_cutoffs;
  } cases[] = {{"by_score", best_tokens, 1, 1}, {"by_other", best_tokens, -1, 0}, {"least", min_tokens, -1, 0}};
  float scores[N * E], dgates[N * E], gates[2][N * E], dscores[2][N * E];
  fill_scores(scores, N, E, 1);
  fill_scores(dgates, N, E, 2);
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    float weights[2];
    seen_routing seen[2];
    for (int ranked = 0; ranked < 2; ranked++) {
      choir_experts_choose r = own_min;
      r.common.name = "twin", r.common.choose = cases[c].choose, r.common.options[0].value = cases[c].sign;
      if (!ranked) r.common.rank = NULL;
      test_ok(choir_router_register_experts(&r));
      const ch_router_spec o = test_router("twin");
      choir_route_request q = {.config = test_config_of(&o), .n = N, .e = E, .scores = scores, .training = 1};
      test_ok(choir_route(&q, gates[ranked], NULL));
      test_ok(choir_route_visit(&q, see, &seen[ranked]));
      test_ok(choir_route_backward(&q, dgates, 0, dscores[ranked]));
      choir_trainer *trainer;
      choir_trainer_result result;
      int32_t tokens[MODEL_B * MODEL_T];
      choir_model *model = model_after_step("twin", tokens, &trainer);
      for (int s = 0; s < 2; s++) test_ok(choir_trainer_step(trainer, tokens, NULL, &result));
      weights[ranked] = (float)result.gradient_norm;
      choir_trainer_free(trainer);
      choir_model_free(model);
    }
    assert_memory_equal(gates[0], gates[1], sizeof gates[0]);
    assert_memory_equal(dscores[0], dscores[1], sizeof dscores[0]);
    assert_memory_equal(seen[0].load, seen[1].load, sizeof seen[0].load);
    assert_int_equal(!memcmp(seen[0].cutoffs, seen[1].cutoffs, sizeof seen[0].cutoffs), cases[c].same_cutoffs);
    assert_true(weights[0] == weights[1]);
  }
}

/* ---- what is refused */

/* By a token and the next one; with a context not finite, and not even that for padding. */
static int rank_by_neighbors(void *context, const choir_plugin_call *call, float *ranking) {
  for (int i = 0; i < call->n * call->e; i++) {
    int next = i + call->e;
    ranking[i] = call->scores[i] - (next < call->n * call->e ? call->scores[next] : 0);
    if (context || !call->valid[i / call->e]) ranking[i] = NAN;
  }
  return 0;
}

static int rank_nothing(void *context, const choir_plugin_call *call, float *ranking) {
  strcpy(call->message, "no opinion");
  return 1;
}

static int route_with(const choir_experts_choose *router, const float *thresholds) {
  float scores[N * E], gates[N * E];
  uint8_t valid[N];
  fill_valid(valid);
  fill_scores(scores, N, E, 3);
  test_ok(choir_router_register_experts(router));
  const ch_router_spec o = test_router(router->common.name);
  return choir_route(
      &(choir_route_request){
          .config = test_config_of(&o), .n = N, .e = E, .scores = scores, .valid = valid, .thresholds = thresholds},
      gates, NULL);
}

static void rankings_are_checked(void **state) {
  choir_experts_choose r = own_min;
  r.common.name = "ranks_badly", r.common.rank = rank_by_neighbors;
  test_fails(route_with(&r, NULL), CHOIR_ERROR_ARGUMENT,
             "router 'ranks_badly': the ranking of token 0 changes when it is alone");
  r.common.context = &r;
  test_fails(route_with(&r, NULL), CHOIR_ERROR_NUMERIC,
             "router 'ranks_badly': the ranking of token 0 at expert 0 is nan");
  r.common.rank = rank_nothing;
  test_fails(route_with(&r, NULL), CHOIR_ERROR_ARGUMENT, "router 'ranks_badly': no opinion");
}

static int ranks_of_serving; /* what goes wrong only after the measurement */
static int rank_until(void *context, const choir_plugin_call *call, float *ranking) {
  rank_tokens(NULL, call, ranking);
  if (ranks_of_serving == 1) ranking[call->e] = INFINITY;
  if (ranks_of_serving == 2) strcpy(call->message, "no opinion");
  return ranks_of_serving == 2;
}

/* A step, and a pass with threshold routing, end with layer and router. */
static void rankings_end_a_pass(void **state) {
  choir_experts_choose r = own_min;
  choir_trainer *trainer;
  choir_trainer_result result;
  choir_forward_result f;
  int32_t tokens[MODEL_B * MODEL_T];
  r.common.name = "ranks_late", r.common.rank = rank_until;
  test_ok(choir_router_register_experts(&r));
  choir_model *model = model_after_step("ranks_late", tokens, &trainer);
  ranks_of_serving = 1;
  test_fails(choir_trainer_step(trainer, tokens, NULL, &result), CHOIR_ERROR_NUMERIC,
             "layer 1: router 'ranks_late': the ranking of token 1 at expert 0 is inf");
  choir_trainer_free(trainer);
  test_ok(choir_model_set_routing(model, "threshold"));
  test_fails(choir_model_forward(model, MODEL_B, MODEL_T, tokens, NULL, 0, &f), CHOIR_ERROR_NUMERIC,
             "layer 1: router 'ranks_late': the ranking of token 1 at expert 0 is inf");
  ranks_of_serving = 2;
  test_fails(choir_model_forward(model, MODEL_B, MODEL_T, tokens, NULL, 0, &f), CHOIR_ERROR_ARGUMENT,
             "layer 1: router 'ranks_late': no opinion");
  ranks_of_serving = 0;
  test_ok(choir_model_forward(model, MODEL_B, MODEL_T, tokens, NULL, 0, &f));
  choir_model_free(model);
}

static void without_thresholds(void **state) {
  choir_tokens_choose r = {.common = own_min.common, .experts_per_token = 2};
  r.common.size = sizeof r, r.common.name = "alone";
  test_fails(choir_router_register_tokens(&r), CHOIR_ERROR_ARGUMENT, "(none), so no thresholds serve it: leave rank");
  r.depends_on = CHOIR_DEPENDS_ON_ALL_IN_TRAINING;
  test_fails(choir_router_register_tokens(&r), CHOIR_ERROR_ARGUMENT, "(in_training), so no thresholds serve it");
  r.depends_on = CHOIR_DEPENDS_ON_ALL;
  test_ok(choir_router_register_tokens(&r));
  choir_router_info info;
  test_ok(choir_router_describe("alone", &info));
  assert_true(info.has_ranking && info.state == CHOIR_STATE_CUTOFFS);
  test_ok(choir_router_describe("expert_choice", &info));
  assert_false(info.has_ranking);
}

/* ---- in a model */

/* Experts per token in the first MoE layer of the last pass. */
static double experts_per_token(choir_model *model, const char *routing, const int32_t *tokens) {
  choir_forward_result f;
  choir_route_stats s = {0};
  test_ok(choir_model_set_routing(model, routing));
  test_ok(choir_model_forward(model, MODEL_B, MODEL_T, tokens, NULL, 0, &f));
  test_ok(choir_model_get_route_stats(model, 0, &s));
  double experts = (double)s.assignments / (double)s.tokens;
  choir_route_stats_clear(&s);
  return experts;
}

/* A model whose router ranks by its own numbers is served with as many experts per token as it was trained with, and
 * without its ranking with other numbers; and token by token with the same experts as in one pass. */
static void serves_as_trained(void **state) {
  for (int ranked = 1; ranked >= 0; ranked--) {
    choir_experts_choose r = own_min;
    choir_trainer *trainer;
    int32_t tokens[MODEL_B * MODEL_T];
    r.common.name = "served";
    if (!ranked) r.common.rank = NULL;
    test_ok(choir_router_register_experts(&r));
    choir_model *model = model_after_step("served", tokens, &trainer);
    choir_trainer_free(trainer);
    double chosen = experts_per_token(model, "batch", tokens), served = experts_per_token(model, "threshold", tokens);
    if ((fabs(served - chosen) < 0.1 * chosen) != ranked) fail_msg("%d: %g and %g", ranked, chosen, served);
    choir_model_free(model);
  }
}

static void token_by_token(void **state) {
  enum { T = 12 };
  choir_config c = model_config("own_min");
  choir_model *model = model_new(&c, "cpu", "fp32");
  choir_session *session;
  int32_t tokens[T];
  float *one = test_new(MODEL_V), *all = test_new(T * MODEL_V);
  model_tokens(tokens, T, 9);
  choir_session_options o = {.size = sizeof o, .slots = 1, .length = T, .chunk = T};
  test_ok(choir_session_create(model, &o, &session));
  test_ok(choir_model_set_routing(model, "threshold"));
  choir_forward_result f;
  test_ok(choir_model_forward(model, 1, T, tokens, all, 0, &f));
  for (int t = 0; t < T; t++) {
    test_ok(choir_session_advance(session, (int[]){1}, tokens + t, one, NULL));
    for (int v = 0; v < MODEL_V; v++) assert_true(fabsf(one[v] - all[t * MODEL_V + v]) < 1e-4f);
  }
  choir_session_free(session);
  choir_model_free(model);
  free(one);
  free(all);
}

TEST_MAIN(NULL, NULL, cutoffs_serve_as_many_tokens, cutoffs_of_none_and_all, margins_under_a_cap,
          batch_routing_is_unchanged, rankings_are_checked, rankings_end_a_pass, without_thresholds, serves_as_trained,
          token_by_token)
