/* The bench case `step`: a whole training step of a config on random tokens, by the model's FLOPs. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "model/model.h"
#include "study/bench.h"
#include "train/update.h"

typedef struct {
  choir_config config;
  choir_model *model;
  ch_optimizer optimizer;
  ch_arena state;
  int32_t *token, *target; /* [B*T] */
  int64_t step;
} training;

static int64_t batch_tokens(const training *t) {
  return (int64_t)t->config.train.batch_sequences * t->config.train.sequence_length;
}

static ch_pass make_pass(const training *t, int B, int T, int gradients) {
  return (ch_pass){.B = B,
                   .T = T,
                   .token = t->token,
                   .target = t->target,
                   .training = gradients,
                   .gradients = gradients,
                   .weight = (real)(1.0 / ((double)B * T)),
                   .aux_scale = 1,
                   .seed = 1,
                   .micro = (uint64_t)t->step};
}

static void one_step(void *context) {
  training *t = context;
  ch_exec *x = &t->model->x;
  ch_pass pass = make_pass(t, t->config.train.batch_sequences, t->config.train.sequence_length, 1);
  ch_update update = {.x = x, .optimizer = &t->optimizer, .step = ++t->step};
  if (t->model->share_gradients) pass.ready = ch_update_layer, pass.context = &update;
  ch_model_zero_gradients(t->model);
  ch_transformer_run(x, &t->model->net, &pass);
  ch_update_finish(&update, t->model->share_gradients, pass.loss_sum);
}

static int fill_tokens(ch_bench *b, training *t) {
  int64_t n = batch_tokens(t);
  ch_rng rng = ch_rng_make(1, CH_STREAM_TEST, 0);
  void *room;
  CH_TRY(ch_bench_bytes(b, (size_t)(2 * n) * sizeof(int32_t), &room));
  t->token = room;
  t->target = t->token + n;
  for (int64_t i = 0; i < 2 * n; i++)
    t->token[i] = (int32_t)ch_rng_below(rng, (uint64_t)i, (uint64_t)t->config.model.vocab_size);
  return CHOIR_OK;
}

static int set_up(ch_bench *b, training *t) {
  CH_TRY(choir_config_load(b->word, &t->config));
  choir_train_config *c = &t->config.train;
  for (int i = 0; i < 2; i++)
    if (b->value[i] > INT32_MAX)
      return ch_error(CHOIR_ERROR_ARGUMENT, "bench 'step': %s=%g is too large", b->which->key[i].name, b->value[i]);
  if (b->value[0] > 0) c->batch_sequences = (int)b->value[0];
  if (b->value[1] > 0) c->sequence_length = (int)b->value[1];
  if (!t->config.model.vocab_size) t->config.model.vocab_size = 8192;
  snprintf(c->compute, sizeof c->compute, "%s", ch_compute_names[b->compute]);
  CH_TRY(choir_config_check(&t->config));
  CH_TRY(fill_tokens(b, t));
  choir_run_options run = CHOIR_RUN_OPTIONS_INIT;
  run.threads = b->options->threads;
  CH_TRY(choir_model_init(&t->config, 1, &run, &t->model));
  t->model->share_gradients = ch_update_in_backward(c, 1);
  CH_TRY(ch_model_zero_gradients(t->model));
  CH_TRY(ch_optimizer_create(c, &t->model->net.params, &t->optimizer));
  ch_optimizer_alloc(&t->optimizer, &t->state);
  CH_TRY(ch_arena_commit(&t->state));
  ch_optimizer_alloc(&t->optimizer, &t->state);
  ch_update_count(&t->model->x, &t->optimizer);
  t->model->reserved_scratch = t->model->x.scratch.peak;
  return CHOIR_OK;
}

/* The loss of one short sequence against the reference backend, with the same weights. */
static int compare(ch_bench *b, training *t) {
  ch_exec reference;
  int T = t->config.train.sequence_length < 32 ? t->config.train.sequence_length : 32;
  ch_pass fast = make_pass(t, 1, T, 0), slow = fast;
  CH_TRY(ch_model_plan(t->model, 1, T, 0));
  ch_transformer_run(&t->model->x, &t->model->net, &fast);
  CH_TRY(ch_exec_init(&reference, "reference", CH_COMPUTE_FP32, 0, b->options->threads));
  ch_transformer_run(&reference, &t->model->net, &slow);
  int code = ch_exec_commit(&reference);
  if (!code) ch_transformer_run(&reference, &t->model->net, &slow);
  ch_exec_free(&reference);
  b->result->error = fabs(fast.loss_sum - slow.loss_sum) / fabs(slow.loss_sum);
  if (!isfinite(fast.loss_sum)) b->result->error = (double)NAN;
  snprintf(b->result->note, sizeof b->result->note, "error: loss of %d tokens, fp32 reference", T);
  return code;
}

static int measure(ch_bench *b, training *t) {
  choir_config_costs costs;
  CH_TRY(set_up(b, t));
  CH_TRY(compare(b, t));
  CH_TRY(ch_model_plan(t->model, t->config.train.batch_sequences, t->config.train.sequence_length, 1));
  CH_TRY(choir_config_cost(&t->config, &costs));
  ch_bench_time(b, one_step, t);
  ch_bench_rates(b, costs.train_flops_per_token * (double)batch_tokens(t), 0);
  return CHOIR_OK;
}

int ch_bench_step(ch_bench *b) {
  training t = {0};
  ch_arena_init(&t.state, "optimizer state");
  int code = measure(b, &t);
  ch_optimizer_free(&t.optimizer);
  ch_arena_free(&t.state);
  choir_model_free(t.model);
  return code;
}
