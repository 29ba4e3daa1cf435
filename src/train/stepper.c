#include "train/stepper.h"

#include "base/error.h"

int ch_stepper_create(choir_model *model, ch_stepper *s) {
  *s = (ch_stepper){.config = model->config, .model = model};
  const choir_train_config *c = &s->config.train;
  ch_arena_init(&s->state, "optimizer state");
  model->share_gradients = ch_update_in_backward(c, 1);
  CH_TRY(ch_model_make_gradients(model));
  CH_TRY(ch_optimizer_create(c, &model->net.params, &s->optimizer));
  ch_optimizer_alloc(&s->optimizer, &s->state);
  CH_TRY(ch_arena_commit(&s->state));
  ch_optimizer_alloc(&s->optimizer, &s->state);
  ch_update_count(&model->x, &s->optimizer);
  model->reserved_scratch = model->x.scratch.peak;
  return ch_model_plan(model, c->batch_sequences, c->sequence_length, 1);
}

void ch_stepper_free(ch_stepper *s) {
  ch_optimizer_free(&s->optimizer);
  ch_arena_free(&s->state);
  choir_model_free(s->model);
  s->model = NULL;
}

ch_pass ch_stepper_pass(const ch_stepper *s, int B, int T, const int32_t *token, const int32_t *target, int gradients) {
  return (ch_pass){.B = B,
                   .T = T,
                   .token = token,
                   .target = target,
                   .training = gradients,
                   .gradients = gradients,
                   .weight = (real)(1.0 / ((double)B * T)),
                   .aux_scale = 1,
                   .seed = 1,
                   .micro = (uint64_t)s->step};
}

double ch_stepper_run(ch_stepper *s, const int32_t *token, const int32_t *target) {
  ch_exec *x = &s->model->x;
  int B = s->config.train.batch_sequences, T = s->config.train.sequence_length;
  ch_pass pass = ch_stepper_pass(s, B, T, token, target, 1);
  ch_update update = {.x = x, .optimizer = &s->optimizer, .step = ++s->step};
  if (s->model->share_gradients) pass.ready = ch_update_layer, pass.context = &update;
  ch_transformer_run(x, &s->model->net, &pass);
  ch_update_finish(&update, s->model->share_gradients, pass.loss_sum);
  return pass.loss_sum / ((double)B * T);
}
