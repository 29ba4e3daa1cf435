/* Small models for tests of whole passes: random weights, and what their routers keep from a few observed batches. */
#ifndef CH_TESTS_MODEL_TESTING_H
#define CH_TESTS_MODEL_TESTING_H

#include "choir/choir.h"
#include "handle/model.h"
#include "model/config.h"
#include "modern.h"
#include "testing.h"
#include "train/step.h"

enum { MODEL_B = 8, MODEL_T = 24, MODEL_V = 96, MODEL_E = 8 };

static inline choir_config model_config(const char *router) {
  choir_config c;
  ch_config_default(&c);
  test_set(&c,
           "vocab_size=%d layers=4 d_model=32 d_hidden=48 d_expert=40 heads=2 sequence_length=%d batch_sequences=%d",
           MODEL_V, MODEL_T, MODEL_B);
  c.model.experts = strcmp(router, "dense") ? MODEL_E : 1;
  c.model.router = test_router(router);
  if (ch_router_takes(ch_router_find(router), CH_OPTION_pool))
    c.model.router.group_size = 40; /* cuts sequences and spans them */
  return c;
}

static inline void model_tokens(int32_t *token, int count, uint32_t sub) {
  for (int i = 0; i < count; i++)
    token[i] = (int32_t)ch_rng_below(ch_rng_make(1, CH_STREAM_TEST, sub), (uint64_t)i, MODEL_V);
}

/* Weights as they are drawn, on two threads. */
static inline choir_model *model_fresh(const choir_config *config) {
  choir_model_options run = {.size = sizeof run, .threads = 2};
  choir_model *model;
  test_ok(choir_model_create(config, 5, &run, &model));
  return model;
}

/* A model and its trainer, after a step on tokens [MODEL_B,MODEL_T]. */
static inline choir_model *model_after_step(const char *router, int32_t *tokens, choir_trainer **trainer) {
  choir_config c = model_config(router);
  choir_model *model = model_fresh(&c);
  choir_trainer_result r;
  model_tokens(tokens, MODEL_B * MODEL_T, 4);
  test_ok(choir_trainer_create(model, NULL, trainer));
  test_ok(choir_trainer_step(*trainer, tokens, NULL, &r));
  return model;
}

/* As training would leave it, but for the weights: cut-offs and centroids are means over three batches. */
static inline choir_model *model_new(const choir_config *config, const char *backend, const char *compute) {
  choir_model_options run = {
      .size = sizeof run, .backend = backend, .compute = compute, .emulate_bf16 = 1, .threads = 2};
  choir_model *model;
  test_ok(choir_model_create(config, 5, &run, &model));
  test_ok(ch_model_plan(model, MODEL_B, MODEL_T, 0));
  for (uint64_t micro = 0; micro < 3; micro++) {
    int32_t token[MODEL_B * MODEL_T];
    model_tokens(token, MODEL_B * MODEL_T, 60 + (uint32_t)micro);
    ch_pass pass = {.B = MODEL_B, .T = MODEL_T, .token = token, .route = {.training = 1}, .observe = 1, .micro = micro};
    ch_transformer_run(&model->x, &model->net, &pass);
  }
  return model;
}

/* All gradients, malloc'd. */
static inline real *model_gradients(const choir_model *model) {
  const ch_params *params = &model->net.params;
  real *all = test_new(ch_params_total(params)), *at = all;
  for (int i = 0; i < params->count; at += params->p[i++].count)
    memcpy(at, params->p[i].g, (size_t)params->p[i].count * sizeof *at);
  return all;
}

/* The weights are those in `want`, byte for byte; the first call puts them there, malloc'd. */
static inline void model_same_weights(const choir_model *model, real **want) {
  const ch_arena *weights = &model->weights;
  if (!*want) memcpy(*want = test_new((int64_t)(weights->size / sizeof **want)), weights->base, weights->size);
  assert_memory_equal(weights->base, *want, weights->size);
}

static inline void model_trainer(choir_model *model, ch_trainer *t) {
  test_ok(ch_trainer_plan(model, t));
  test_ok(ch_trainer_commit(t));
}

#endif
