/* Bench case `step`: a whole training step of a config on random tokens, with the speed in model FLOPs. */
#include "train/step.h"

#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "bench/cases.h"

typedef struct {
  ch_trainer trainer;
  int32_t *token, *target; /* of one step */
  int code;                /* error of the first failed step */
} training;

static void one_step(void *context) {
  training *t = context;
  choir_trainer_result ignored;
  if (!t->code) t->code = ch_trainer_step(&t->trainer, t->token, t->target, &ignored);
}

static int set_up_training(ch_bench *b, training *t) {
  choir_config config;
  choir_model *model;
  CH_TRY(ch_bench_config(b, &config));
  ch_train_config *c = &config.train;
  for (int i = 0; i < 2; i++)
    if (b->value[i] > INT32_MAX)
      return ch_error(CHOIR_ERROR_ARGUMENT, "bench 'step': %s=%g is too large", b->which->key[i].name, b->value[i]);
  if (b->value[0] > 0) c->batch_sequences = (int)b->value[0];
  if (b->value[1] > 0) c->sequence_length = (int)b->value[1];
  if (*b->word[1]) {
    const ch_router *router = ch_router_find(b->word[1]);
    if (!router) return CHOIR_ERROR_ARGUMENT;
    config.model.router = ch_router_default(router);
  }
  CH_TRY(ch_bench_capacity(b, 2, &config.model.router));
  CH_TRY(choir_config_check(&config));
  int64_t n = ch_step_tokens(c);
  t->token = ch_bench_tokens(b, 2 * n, config.model.vocab_size);
  CH_TRY(b->code);
  t->target = t->token + n;
  choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
  run.threads = b->options->threads;
  run.backend = b->backend->name;
  CH_TRY(choir_model_create(&config, 1, &run, &model));
  CH_TRY(ch_trainer_plan(model, &t->trainer));
  return ch_trainer_commit(&t->trainer);
}

/* The model's weights for the reference backend: the same arrays, or a copy. */
static int make_twin(ch_bench *b, const choir_model *model, ch_transformer *twin) {
  *twin = model->net;
  if (b->backend->memory->host) return CHOIR_OK;
  CH_TRY(ch_transformer_create(&model->config.model, twin));
  for (int i = 0; i < twin->params.count + twin->params.buffers; i++) {
    ch_param *p = &twin->params.p[i];
    p->w = CH_AS_DEV(real, ch_bench_read(b, model->net.params.p[i].w, (size_t)p->count * sizeof(real)));
  }
  if (b->code) ch_transformer_free(twin);
  return b->code;
}

/* The loss of one short sequence against the reference backend, with the same weights. */
static int compare_step(ch_bench *b, training *t) {
  ch_transformer twin;
  ch_exec reference;
  choir_model *model = t->trainer.model;
  int T = model->config.model.experts > 32 ? model->config.model.experts : 32; /* at least as many tokens as experts */
  if (T > model->config.train.sequence_length) T = model->config.train.sequence_length;
  ch_pass fast = {.B = 1, .T = T, .token = t->token, .target = t->target}, slow = fast;
  CH_TRY(ch_model_plan(model, 1, T, 0));
  ch_transformer_run(&model->x, &model->net, &fast);
  CH_TRY(make_twin(b, model, &twin));
  int code = ch_exec_init(&reference, "reference", CH_COMPUTE_FP32, 0, b->options->threads);
  if (!code) ch_transformer_run(&reference, &twin, &slow);
  if (!code) code = ch_exec_commit(&reference);
  if (!code) ch_transformer_run(&reference, &twin, &slow);
  ch_exec_free(&reference);
  if (!b->backend->memory->host) ch_transformer_free(&twin);
  b->result->error = fabs(fast.loss_sum - slow.loss_sum) / fabs(slow.loss_sum);
  if (!isfinite(fast.loss_sum)) b->result->error = (double)NAN;
  snprintf(b->result->note, sizeof b->result->note, "error: loss of %d tokens, fp32 reference", T);
  return code;
}

static int measure_step(ch_bench *b, training *t) {
  choir_config_costs costs;
  CH_TRY(set_up_training(b, t));
  CH_TRY(compare_step(b, t));
  const choir_config *config = &t->trainer.model->config;
  CH_TRY(ch_model_plan(t->trainer.model, ch_pass_sequences(config), config->train.sequence_length, 1));
  CH_TRY(choir_config_get_costs(config, &costs));
  const ch_transformer *net = &t->trainer.model->net;
  ch_bench_time(b, one_step, t);
  CH_TRY(t->code);
  b->result->tokens = ch_step_tokens(&config->train);
  ch_bench_rates(b, costs.train_flops_per_token * (double)b->result->tokens, 0);
  if (net->moe_layers) ch_bench_loads(b, &config->model.router, net->stats, net->moe_layers);
  return CHOIR_OK;
}

int ch_bench_step(ch_bench *b) {
  training t = {0};
  int code = measure_step(b, &t);
  ch_trainer_free(&t.trainer);
  return code;
}
