#include "train/step.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "train/update.h"

/* The step's micro-batch number `a`, forward and backward. update: of the layers, within the backward pass, or NULL.
 * sums: of the loss and of the auxiliary loss, added to. */
static void micro_batch(ch_trainer *t, int a, const int32_t *token, const int32_t *target, ch_update *update,
                        double *sums) {
  const choir_config *config = &t->model->config;
  const choir_train_config *c = &config->train;
  int B = ch_pass_sequences(config), after = config->model.router.threshold_after > 0;
  int64_t n = (int64_t)B * c->sequence_length;
  double share = 1.0 / ((double)c->accumulate * t->comm->size); /* of this micro-batch in the step */
  uint64_t micro = (uint64_t)(t->step * c->accumulate + a);
  ch_pass pass = {.B = B,
                  .T = c->sequence_length,
                  .token = token,
                  .target = target,
                  .training = 1,
                  .gradients = 1,
                  .accumulate = a > 0,
                  .drawn_twice = t->twice != NULL,
                  .by_threshold = after && t->step >= config->model.router.threshold_after,
                  .observe = 1,
                  .weight = (real)(share / (double)n),
                  .aux_scale = (real)share,
                  .ready = update ? ch_update_layer : NULL,
                  .context = update,
                  .seed = c->seed,
                  .micro = micro * (uint64_t)t->comm->size + (uint64_t)t->comm->rank};
  ch_transformer_run(&t->model->x, &t->model->net, &pass);
  sums[0] += pass.loss_sum / (double)n * share;
  sums[1] += pass.aux_loss * share;
}

/* The micro-batch as the model is to see it. */
static void run_micro_batch(ch_trainer *t, int a, const int32_t *token, const int32_t *target, ch_update *update,
                            double *sums) {
  const choir_train_config *c = &t->model->config.train;
  int64_t once = (int64_t)c->batch_sequences * c->sequence_length;
  token += a * once;
  target += a * once;
  if (t->twice) {
    for (int i = 0; i < 2; i++) {
      memcpy(t->twice + i * once, token, (size_t)once * sizeof *token);
      memcpy(t->twice + (2 + i) * once, target, (size_t)once * sizeof *target);
    }
    token = t->twice;
    target = t->twice + 2 * once;
  }
  micro_batch(t, a, token, target, update, sums);
}

int ch_trainer_not_finite(const ch_trainer *t, int64_t step, double loss) {
  ch_exec *x = &t->model->x;
  const char *what = "weight", *name = ch_model_bad_weight(t->model);
  ch_marks mark = ch_scratch_mark(x);
  const double *squares = ch_optimizer_read_squares(x, &t->optimizer);
  for (int i = 0; !name && i < t->model->net.params.count; i++) {
    what = "gradient";
    if (!isfinite(squares[i])) name = t->model->net.params.p[i].name;
  }
  ch_scratch_release(x, mark);
  return ch_error(CHOIR_ERROR_NUMERIC,
                  "step %" PRId64
                  ": loss %g; first tensor that is not finite: %s%s%s. Nothing of this step was kept; resume from "
                  "the last checkpoint with a lower train.rate or with train.clip_norm",
                  step, loss, name ? what : "none, the loss alone", name ? " of " : "", name ? name : "");
}

int ch_trainer_check_weights(const ch_trainer *t, double loss) {
  return ch_model_bad_weight(t->model) ? ch_trainer_not_finite(t, t->step, loss) : CHOIR_OK;
}

/* Sums over ranks, or nothing where there is one. */
static int add_ranks(const ch_trainer *t, double *sums, int count) {
  const ch_params *params = &t->model->net.params;
  for (int i = 0; i < params->count; i++)
    CH_TRY(t->comm->sum(t->comm, t->model->x.memory, params->p[i].g, params->p[i].count));
  return t->comm->sum_double(t->comm, sums, count);
}

/* Gradients of all micro-batches, and the update. Nothing is updated from what is not finite. */
int ch_trainer_step(ch_trainer *t, const int32_t *token, const int32_t *target, ch_step_result *r) {
  choir_model *model = t->model;
  const choir_train_config *c = &model->config.train;
  double sums[2] = {0};
  int in_backward = model->share_gradients;
  ch_update update = {.x = &model->x, .optimizer = &t->optimizer, .step = t->step + 1};
  ch_transformer_clear_stats(&model->net);
  for (int a = 0; a < c->accumulate; a++) run_micro_batch(t, a, token, target, in_backward ? &update : NULL, sums);
  CH_TRY(add_ranks(t, sums, 2));
  *r = (ch_step_result){.loss = sums[0],
                        .aux_loss = sums[1],
                        .rate = ch_schedule_rate(c, update.step),
                        .routing = ch_route_stats_summary(model->net.stats, model->net.moe_layers)};
  r->gradient_norm = ch_update_finish(&update, in_backward, r->loss);
  if (update.stopped) return ch_trainer_not_finite(t, update.step, r->loss);
  t->step = update.step;
  return CHOIR_OK;
}
