/* The first backward of a step sets gradients, whatever stands there, to what it would add to zeros; later ones add. */
#include "model/config.h"
#include "model_testing.h"
#include "moe_testing.h"
#include "program.h"
#include "train/pretrain.h"

enum { TOKENS = MODEL_B * MODEL_T, VARIANTS = 2 };

/* Every router, and after them a model without MoE layers. */
static choir_config config_of(int which) {
  const char *router = ch_router_names[which];
  choir_config c = model_config(router ? router : "expert_choice");
  if (!router) c.model.moe_every = 0;
  if (!strcmp(c.model.router.kind->name, "random")) c.model.router.consistency_weight = 1;
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
                  .route = {.training = 1},
                  .gradients = 1,
                  .accumulate = accumulate,
                  .paired = ch_router_draws_per_sequence(&model->config.model.router) > 1,
                  .weight = (real)(1.0 / TOKENS),
                  .aux_scale = 1,
                  .seed = 3,
                  .micro = micro};
  ch_transformer_run(&model->x, &model->net, &pass);
}

/* Equal as numbers: the sign of a zero may differ. */
static void same_gradients(const choir_model *model, const real *want) {
  const ch_params *params = &model->net.params;
  for (int i = 0; i < params->count; want += params->p[i++].count)
    for (int64_t k = 0; k < params->p[i].count; k++)
      if (!(params->p[i].g[k] == want[k]))
        fail_msg("%s, %s[%d]: %g, adding to zeros %g", model->config.model.router.kind->name, params->p[i].name, (int)k,
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
    want[micro] = model_gradients(model);
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
  int starving = 0;
  for (int which = 0; !which || ch_router_names[which - 1]; which++)
    for (int bf16 = 0; bf16 < 2; bf16++)
      for (int variant = 0; variant < VARIANTS; variant++)
        starving += check_pass(which, bf16 ? "bf16" : "fp32", variant) > 0;
  assert_true(starving >= 6); /* gshard_top2, switch_top1 and hash at least */
}

/* A router whose gates are constants, though its weight is to be trained: that gradient is zero. */
static void constant_gates(void **state) {
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
      ch_trainer t;
      choir_trainer_result r;
      model_trainer(model_of(&config, "fp32", variant, token), &t);
      for (int step = 0; step < STEPS; step++) {
        if (poison) poison_gradients(t.model);
        test_ok(ch_trainer_step(&t, token, token, &r));
        assert_true(isfinite(r.loss) && t.step == step + 1);
      }
      model_same_weights(t.model, &want);
      ch_trainer_free(&t);
    }
  free(want);
}

static void steps_over_poison(void **state) {
  for (int which = 0; !which || ch_router_names[which - 1]; which++)
    for (int variant = 0; variant < VARIANTS; variant++) check_steps(which, variant);
}

/* A step of two micro-batches has the mean of the gradients of two steps of one, and of their losses: the second such
 * step that of steps three and four, whose elements it drops. */
static void micro_batches(void **state) {
  choir_config config = model_config("switch_top1");
  config.model.router.aux_loss_weight = 1;
  config.train.dropout = 0.1;
  config.train.clip_norm = 1e20; /* keeps all gradients to the end */
  int32_t token[2][TOKENS];
  real *gradient[3];
  double loss[3], aux[3];
  for (int i = 0; i < 3; i++) {
    ch_trainer t;
    choir_trainer_result r;
    choir_model *model;
    config.train.accumulate = 1 + i / 2;
    test_ok(choir_model_create(&config, 1, NULL, &model));
    model_trainer(model, &t);
    t.model->config.train.learning_rate = 0; /* the step leaves the weights unchanged */
    t.step = i < 2 ? 2 + i : 1;
    for (int j = 0; j < 2; j++) model_tokens(token[j], TOKENS, 80 + (uint32_t)j);
    assert_int_equal(ch_step_tokens(&config.train), i < 2 ? TOKENS : 2 * TOKENS);
    poison_gradients(t.model);
    test_ok(ch_trainer_step(&t, token[i % 2], token[i % 2], &r));
    gradient[i] = model_gradients(t.model);
    loss[i] = r.loss;
    aux[i] = r.aux_loss;
    ch_trainer_free(&t);
  }
  int64_t count = 0;
  choir_config_costs costs;
  test_ok(choir_config_get_costs(&config, &costs));
  count = costs.parameters;
  assert_true(test_error(gradient[0], gradient[1], count) > 0.01);
  for (int64_t i = 0; i < count; i++) gradient[0][i] = (gradient[0][i] + gradient[1][i]) / 2;
  test_close(gradient[2], gradient[0], count, 1e-5);
  assert_true(fabs(loss[2] / (loss[0] + loss[1]) - 0.5) < 1e-6);
  assert_true(fabs(aux[2] / (aux[0] + aux[1]) - 0.5) < 1e-6);
  for (int i = 0; i < 3; i++) free(gradient[i]);
}

/* The tokens of a run's first `steps` steps, one after the other. */
static int32_t *drawn(int accumulate, int steps) {
  ch_pretraining p = {.run = {.kind = &ch_run_pretraining}};
  ch_run *run = &p.run;
  choir_trainer_result r;
  ch_step_counts counts;
  choir_model *model;
  test_ok(ch_config_load("config.json", &run->config));
  run->config.model.vocab_size = 320;
  run->config.train.accumulate = accumulate;
  test_ok(choir_data_load("data", &p.data));
  test_ok(choir_model_create(&run->config, 1, NULL, &model));
  model_trainer(model, &run->trainer);
  test_ok(ch_pretraining_plan(&p));
  size_t n = (size_t)ch_step_tokens(&run->config.train);
  int32_t *all = malloc(n * (size_t)steps * sizeof *all);
  for (int i = 0; i < steps; i++) {
    test_ok(ch_run_step(run, &counts, &r));
    assert_int_equal(run->trainer.step, i + 1);
    memcpy(all + n * (size_t)i, p.batch, n * sizeof *all);
  }
  ch_pretraining_free(&p);
  return all;
}

/* A run draws the micro-batches of a step as it draws steps: samples in turn. */
static void micro_batches_in_turn(void **state) {
  choir_config c;
  test_ok(ch_config_load("config.json", &c));
  int32_t *one = drawn(1, 4), *two = drawn(2, 2);
  assert_memory_equal(one, two, (size_t)(4 * ch_step_tokens(&c.train)) * sizeof *one);
  free(one), free(two);
}

TEST_MAIN(program_setup, program_directory_remove, sets_what_adding_to_zeros_gives, constant_gates, steps_over_poison,
          micro_batches, micro_batches_in_turn)
