/* The first backward of a step sets gradients, whatever stands there, to what it would add to zeros; later ones add. */
#include "model_testing.h"
#include "moe_testing.h"
#include "program.h"
#include "train/loop.h"
#include "train/stepper.h"

enum { TOKENS = MODEL_B * MODEL_T, VARIANTS = 2 };

/* Every router, and after them a model without MoE layers. */
static choir_config config_of(int which) {
  choir_config c = model_config(which < ROUTERS ? all_routers[which] : "expert_choice");
  if (which == ROUTERS) c.model.moe_every = 0;
  if (!strcmp(c.model.router.name, "random")) c.model.router.consistency_weight = 1;
  return c;
}

/* As made, and with routers that know no difference and tokens that are all the same: some experts get none. */
static choir_model *model_of(const choir_config *config, const char *compute, int variant, int32_t *token) {
  choir_model *model = model_new(config, "cpu", compute);
  for (int l = 0; l < config->model.layers && variant; l++) {
    ch_param *router = model->net.block[l].router;
    if (router) memset(router->w, 0, (size_t)router->count * sizeof *router->w);
  }
  model_tokens(token, TOKENS, 70);
  for (int i = 0; i < TOKENS && variant; i++) token[i] = 5;
  memcpy(token + TOKENS / 2, token, sizeof *token * TOKENS / 2); /* pairs, for who wants them */
  test_ok(ch_model_make_gradients(model));
  return model;
}

static void poison_gradients(choir_model *model) { memset(model->gradients.base, 0xff, model->gradients.size); }

static void backward(choir_model *model, const int32_t *token, uint64_t micro, int accumulate) {
  ch_pass pass = {.B = MODEL_B,
                  .T = MODEL_T,
                  .token = token,
                  .target = token,
                  .training = 1,
                  .gradients = 1,
                  .accumulate = accumulate,
                  .drawn_twice = ch_router_draws_per_sequence(&model->config.model.router) > 1,
                  .weight = (real)(1.0 / TOKENS),
                  .aux_scale = 1,
                  .seed = 3,
                  .micro = micro};
  ch_transformer_run(&model->x, &model->net, &pass);
}

/* All gradients, malloc'd. */
static real *gradients_of(const choir_model *model) {
  const ch_params *params = &model->net.params;
  real *all = test_new(ch_params_total(params)), *at = all;
  for (int i = 0; i < params->count; at += params->p[i++].count)
    memcpy(at, params->p[i].g, (size_t)params->p[i].count * sizeof *at);
  return all;
}

/* Equal as numbers: the sign of a zero may differ. */
static void same_gradients(const choir_model *model, const real *want) {
  const ch_params *params = &model->net.params;
  for (int i = 0; i < params->count; want += params->p[i++].count)
    for (int64_t k = 0; k < params->p[i].count; k++)
      if (!(params->p[i].g[k] == want[k]))
        fail_msg("%s, %s[%d]: %g, adding to zeros %g", model->config.model.router.name, params->p[i].name, (int)k,
                 (double)params->p[i].g[k], (double)want[k]);
}

static int starved_experts(const choir_model *model) {
  int starved = 0;
  for (int i = 0; i < model->net.moe_layers; i++)
    for (int e = 0; e < model->net.stats[i].experts; e++) starved += model->net.stats[i].load[e] == 0;
  return starved;
}

static int check_pass(int which, const char *compute, int variant) {
  int32_t token[TOKENS];
  choir_config config = config_of(which);
  choir_model *model = model_of(&config, compute, variant, token);
  real *want[2];
  test_ok(ch_model_plan(model, MODEL_B, MODEL_T, 1));
  memset(model->gradients.base, 0, model->gradients.size);
  for (int micro = 0; micro < 2; micro++) {
    backward(model, token, (uint64_t)micro, 1);
    want[micro] = gradients_of(model);
  }
  poison_gradients(model);
  ch_transformer_clear_stats(&model->net);
  for (int micro = 0; micro < 2; micro++) {
    backward(model, token, (uint64_t)micro, micro);
    same_gradients(model, want[micro]);
    free(want[micro]);
  }
  int starved = starved_experts(model);
  choir_model_free(model);
  return starved;
}

static void sets_what_adding_to_zeros_gives(void **state) {
  (void)state;
  int starving = 0;
  for (int which = 0; which <= ROUTERS; which++)
    for (int bf16 = 0; bf16 < 2; bf16++)
      for (int variant = 0; variant < VARIANTS; variant++)
        starving += check_pass(which, bf16 ? "bf16" : "fp32", variant) > 0;
  assert_true(starving >= 6); /* gshard_top2, switch_top1 and hash at least */
}

/* A router whose gates are constants, though its weight is to be trained: that gradient is zero. */
static void constant_gates(void **state) {
  (void)state;
  layer_case c = layer_case_new("hash", 6, 4, 5, 3);
  static const int32_t ids[] = {1, 2, 3, 4, 5, 6};
  c.token = ids;
  layer_run(&c, 1);
  for (int i = 0; i < c.d * c.e; i++) assert_true(c.drouter[i] == 0);
  layer_case_free(&c);
}

/* Steps over poison: the same weights as without, with an update in the backward pass and after it. */
static void check_steps(int which, int variant) {
  enum { STEPS = 3 };
  int32_t token[TOKENS];
  real *want = NULL;
  for (int poison = 0; poison < 2; poison++)
    for (int clip = 0; clip < 2; clip++) {
      choir_config config = config_of(which);
      config.train.clip_norm = clip ? 1e20 : 0;
      config.model.router.consistency_weight = 0; /* a stepper draws once */
      ch_stepper s;
      test_ok(ch_stepper_create(model_of(&config, "fp32", variant, token), &s));
      for (int step = 0; step < STEPS; step++) {
        if (poison) poison_gradients(s.model);
        assert_true(isfinite(ch_stepper_run(&s, token, token)));
      }
      const ch_arena *weights = &s.model->weights;
      if (!want) memcpy(want = test_new((int64_t)(weights->size / sizeof *want)), weights->base, weights->size);
      assert_memory_equal(weights->base, want, weights->size);
      ch_stepper_free(&s);
    }
  free(want);
}

static void steps_over_poison(void **state) {
  (void)state;
  for (int which = 0; which <= ROUTERS; which++)
    for (int variant = 0; variant < VARIANTS; variant++) check_steps(which, variant);
}

/* What a run's next step leaves as its gradients, when poison stood there. */
static real *run_gradients(ch_run *run, int accumulate) {
  choir_train_event e = {0};
  run->config.train.accumulate = accumulate;
  poison_gradients(run->model);
  test_ok(ch_run_step(run, &e));
  return gradients_of(run->model);
}

/* A step of two micro-batches has the mean of the gradients of two steps of one. */
static void micro_batches(void **state) {
  (void)state;
  ch_run run = {.comm = &ch_comm_single};
  test_ok(choir_config_load("config.json", &run.config));
  test_ok(choir_data_open("data", &run.data));
  run.config.model.vocab_size = 320;
  run.config.train.clip_norm = 1e20; /* keeps all gradients to the end */
  test_ok(choir_model_init(&run.config, 1, NULL, &run.model));
  run.config.train.rate = 0; /* so that weights stay what they are */
  test_ok(ch_optimizer_create(&run.config.train, &run.model->net.params, &run.optimizer));
  ch_arena_init(&run.state, "optimizer state");
  ch_optimizer_alloc(&run.optimizer, &run.state);
  test_ok(ch_arena_commit(&run.state));
  ch_optimizer_alloc(&run.optimizer, &run.state);
  test_ok(ch_model_make_gradients(run.model));
  test_ok(ch_run_plan(&run));

  real *first = run_gradients(&run, 1), *second = run_gradients(&run, 1);
  run.position = (ch_data_position){0};
  real *both = run_gradients(&run, 2);
  int64_t count = ch_params_total(&run.model->net.params);
  assert_true(test_error(first, second, count) > 0.01);
  for (int64_t i = 0; i < count; i++) first[i] = (first[i] + second[i]) / 2;
  test_close(both, first, count, 1e-5);

  free(first), free(second), free(both), free(run.batch), free(run.unigram);
  ch_optimizer_free(&run.optimizer);
  ch_arena_free(&run.state);
  choir_model_free(run.model);
  choir_data_close(run.data);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(sets_what_adding_to_zeros_gives),
                                     cmocka_unit_test(constant_gates), cmocka_unit_test(steps_over_poison),
                                     cmocka_unit_test(micro_batches)};
  return cmocka_run_group_tests(tests, program_setup, program_directory_remove);
}
