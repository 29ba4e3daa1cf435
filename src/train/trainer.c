/* choir_trainer_*: training steps on the caller's batches. */
#include "choir/trainer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/threads.h"
#include "file/dir.h"
#include "model/config.h"
#include "model/mask.h"
#include "train/state.h"

struct choir_trainer {
  ch_trainer t;    /* its model is the caller's */
  int32_t *target; /* [sequences,length] if the caller passes no targets; for masked models also the tokens and their
                      weights */
};

static int64_t tokens_of(const choir_trainer *trainer) { return ch_step_tokens(&trainer->t.model->config.train); }

static int create(choir_trainer *made, choir_model *model, const choir_config *given) {
  choir_config config = model->config;
  CH_TRY(ch_model_alone(model, "choir_trainer_create"));
  CH_TRY(ch_model_check_unrounded(model, "training"));
  if (model->reserved_scratch) /* of another trainer, whose batches are planned by the model's config */
    return ch_error(CHOIR_ERROR_BUSY, "the model has a trainer already: free that one first");
  if (given) config.train = given->train;
  CH_TRY(choir_config_check(&config));
  model->config.train = config.train;
  model->grad_chunks = config.train.grad_chunks; /* steps are planned and taken with the same number */
  CH_TRY(ch_trainer_plan(model, &made->t));
  CH_TRY(ch_trainer_commit(&made->t));
  int64_t arrays = ch_config_masked(&config) ? 3 : 1;
  return CH_ALLOC(&made->target, arrays * tokens_of(made), "a batch");
}

int choir_trainer_create(choir_model *model, const choir_config *config, choir_trainer **trainer) {
  CH_ENTER(model, trainer);
  *trainer = NULL;
  CH_TRY(ch_model_check_idle(model));
  CH_TRY(CH_ALLOC(trainer, 1, "a trainer"));
  const ch_train_config before = model->config.train;
  int grad_chunks = model->grad_chunks, code = create(*trainer, model, config);
  if (code) {
    choir_trainer_free(*trainer);
    *trainer = NULL;
    model->config.train = before;
    model->grad_chunks = grad_chunks;
  }
  return code;
}

void choir_trainer_free(choir_trainer *trainer) {
  if (!trainer) return;
  if (trainer->t.model) ch_model_end_training(trainer->t.model);
  trainer->t.model = NULL; /* owned by the caller */
  ch_trainer_free(&trainer->t);
  free(trainer->target);
  free(trainer);
}

int choir_trainer_sequences(const choir_trainer *trainer) {
  if (!trainer) return 0;
  const ch_train_config *c = &trainer->t.model->config.train;
  return c->accumulate * c->batch_sequences;
}

int choir_trainer_sequence_length(const choir_trainer *trainer) {
  return trainer ? trainer->t.model->config.train.sequence_length : 0;
}

static int check_ids(const choir_trainer *trainer, const char *what, const int32_t *ids, int lowest) {
  int V = trainer->t.model->config.model.vocab_size, T = choir_trainer_sequence_length(trainer);
  for (int64_t i = 0; i < tokens_of(trainer); i++)
    if (ids[i] < lowest || ids[i] >= V)
      return ch_error(CHOIR_ERROR_ARGUMENT, "%s %d at sequence %lld, position %lld is outside the vocabulary of %d",
                      what, ids[i], (long long)(i / T), (long long)(i % T), V);
  return CHOIR_OK;
}

/* Computes targets: the next token of each sequence. */
static const int32_t *next_tokens(choir_trainer *trainer, const int32_t *tokens) {
  int64_t T = choir_trainer_sequence_length(trainer);
  for (int64_t i = 0; i < tokens_of(trainer); i++) trainer->target[i] = i % T == T - 1 ? -1 : tokens[i + 1];
  return trainer->target;
}

/* Masks the tokens; returns the weights of targets, or NULL if they have none. */
static const float *mask_tokens(choir_trainer *trainer, const int32_t **tokens) {
  const ch_trainer *t = &trainer->t;
  int64_t n = tokens_of(trainer), T = choir_trainer_sequence_length(trainer);
  int32_t *token = trainer->target + n;
  float *weight = (float *)(token + n);
  int weighted = 0;
  for (int64_t at = 0; at < n; at += T)
    ch_mask_training(&t->model->config, t->step, (int)(at / T), *tokens + at, token + at, trainer->target + at,
                     weight + at, &weighted);
  *tokens = token;
  return weighted ? weight : NULL;
}

static int take_step(choir_trainer *trainer, const int32_t *tokens, const int32_t *target, const float *weight,
                     choir_trainer_result *r) {
  choir_model *model = trainer->t.model;
  CH_TRY(ch_model_plan(model, ch_pass_sequences(&model->config), model->config.train.sequence_length, 1));
  return ch_trainer_step_on(&trainer->t, ch_trainer_cut(&trainer->t, tokens, target, weight), r);
}

/* Trains with the config's routing, then restores the model's routing for evaluations. */
static int step_by_config(choir_trainer *trainer, const int32_t *tokens, const int32_t *target, const float *weight,
                          choir_trainer_result *r) {
  char before[CHOIR_NAME_BYTES];
  choir_model *model = trainer->t.model;
  snprintf(before, sizeof before, "%s", choir_model_routing(model));
  int same = !model->causal && model->net.config.router.pool == model->config.model.router.pool;
  if (same) return take_step(trainer, tokens, target, weight, r);
  CH_TRY(choir_model_set_routing(model, NULL));
  int code = take_step(trainer, tokens, target, weight, r);
  int restored = choir_model_set_routing(model, before);
  return code ? code : restored;
}

int choir_trainer_step(choir_trainer *trainer, const int32_t *tokens, const int32_t *targets,
                       choir_trainer_result *result) {
  CH_ENTER(trainer, tokens, result);
  ch_trainer *t = &trainer->t;
  int64_t count = 0;
  CH_TRY(ch_model_check_idle(t->model));
  CH_TRY(check_ids(trainer, "token", tokens, 0));
  if (targets) CH_TRY(check_ids(trainer, "target", targets, INT_MIN));
  int masks = !targets && ch_config_masked(&t->model->config);
  const float *weight = masks ? mask_tokens(trainer, &tokens) : NULL;
  const int32_t *target = targets ? targets : masks ? trainer->target : next_tokens(trainer, tokens);
  for (int64_t i = 0; i < tokens_of(trainer); i++) count += target[i] >= 0;
  if (!count) return ch_error(CHOIR_ERROR_ARGUMENT, "no position has a target: there is nothing to learn");
  return step_by_config(trainer, tokens, target, weight, result);
}

int choir_trainer_save(const choir_trainer *trainer, const choir_tokenizer *tokenizer, const char *checkpoint) {
  CH_ENTER(trainer, checkpoint);
  int64_t done = trainer->t.step;
  const ch_counter step = {.name = "run.step", .value = &done};
  ch_dir directory;
  CH_TRY(ch_exec_check(&trainer->t.model->x));
  CH_TRY(ch_dir_begin(&directory, checkpoint));
  int code = ch_model_save_into(trainer->t.model, tokenizer, directory.temporary);
  if (!code) code = ch_state_write(&trainer->t, &step, 1, CH_IN(directory.temporary, "state.safetensors"));
  return ch_dir_end(&directory, code);
}

int choir_trainer_resume(choir_trainer *trainer, const char *checkpoint) {
  CH_ENTER(trainer, checkpoint);
  CH_TRY(ch_model_check_idle(trainer->t.model));
  CH_TRY(ch_threads_check(trainer->t.model->x.threads));
  const ch_counter step = {.name = "run.step", .value = &trainer->t.step};
  return ch_state_load(checkpoint, &trainer->t, &step, 1);
}
