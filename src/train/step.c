/* One training step: gradients of its micro-batches, summed over ranks, and the update. */
#include <inttypes.h>
#include <math.h>

#include "base/error.h"
#include "train/loop.h"
#include "train/plan.h"
#include "train/update.h"

/* The next windows, split into tokens and targets, `draws_per_sequence` times over. Ranks take turns through the
 * samples. Returns the targets, which stand behind the tokens in run->batch. */
static int32_t *fill_batch(ch_run *run, int draws_per_sequence) {
  const choir_train_config *c = &run->config.train;
  int B = c->batch_sequences, T = c->sequence_length;
  int64_t once = (int64_t)B * T, n = draws_per_sequence * once;
  int32_t *token = run->batch, *target = token + n, *windows = target + n;
  ch_data_position mine = {run->position.samples + (uint64_t)(run->comm->rank * B)};
  ch_data_next(run->data, c->seed, T, &mine, B, windows);
  run->position.samples += (uint64_t)(run->comm->size * B);
  for (int64_t b = 0; b < B; b++)
    for (int64_t t = 0; t < T; t++) {
      token[b * T + t] = windows[b * (T + 1) + t];
      target[b * T + t] = windows[b * (T + 1) + t + 1];
    }
  for (int64_t t = once; t < n; t++) {
    token[t] = token[t - once];
    target[t] = target[t - once];
  }
  return target;
}

/* The step's micro-batch number `a`, forward and backward. update: of the layers, within the backward pass, or NULL.
 * sums: of the loss and of the auxiliary loss, added to. */
static void micro_batch(ch_run *run, int a, ch_update *update, double *sums) {
  const choir_train_config *c = &run->config.train;
  int B = ch_run_sequences(&run->config), draws_per_sequence = B / c->batch_sequences;
  int64_t n = (int64_t)B * c->sequence_length;
  double share = 1.0 / ((double)c->accumulate * run->comm->size); /* of this micro-batch in the step */
  uint64_t micro = (uint64_t)(run->step * c->accumulate + a);
  const int32_t *target = fill_batch(run, draws_per_sequence);
  ch_pass pass = {.B = B,
                  .T = c->sequence_length,
                  .token = run->batch,
                  .target = target,
                  .training = 1,
                  .gradients = 1,
                  .accumulate = a > 0,
                  .drawn_twice = draws_per_sequence > 1,
                  .by_threshold = run->config.model.router.threshold_after > 0 &&
                                  run->step >= run->config.model.router.threshold_after,
                  .observe = 1,
                  .weight = (real)(share / (double)n),
                  .aux_scale = (real)share,
                  .ready = update ? ch_update_layer : NULL,
                  .context = update,
                  .seed = c->seed,
                  .micro = micro * (uint64_t)run->comm->size + (uint64_t)run->comm->rank};
  ch_transformer_run(&run->model->x, &run->model->net, &pass);
  sums[0] += pass.loss_sum / (double)n * share;
  sums[1] += pass.aux_loss * share;
}

int ch_run_not_finite(const ch_run *run, int64_t step, double loss) {
  const char *what = "weight", *name = ch_model_bad_weight(run->model);
  for (int i = 0; !name && i < run->model->net.params.count; i++) {
    what = "gradient";
    if (!isfinite(run->optimizer.squares[i])) name = run->model->net.params.p[i].name;
  }
  return ch_error(CHOIR_ERROR_NUMERIC,
                  "step %" PRId64
                  ": loss %g; first tensor that is not finite: %s%s%s. Nothing of this step was kept; resume from "
                  "the last checkpoint with a lower train.rate or with train.clip_norm",
                  step, loss, name ? what : "none, the loss alone", name ? " of " : "", name ? name : "");
}

int ch_run_check_weights(ch_run *run, double loss) {
  return ch_model_bad_weight(run->model) ? ch_run_not_finite(run, run->step, loss) : CHOIR_OK;
}

/* Sums over ranks, or nothing where there is one. */
static int add_ranks(ch_run *run, double *sums, int count) {
  const ch_params *params = &run->model->net.params;
  for (int i = 0; i < params->count; i++) CH_TRY(run->comm->sum(run->comm, params->p[i].g, params->p[i].count));
  return run->comm->sum_double(run->comm, sums, count);
}

/* What the routing of a step did, over all its layers. */
static void tell_routing(const ch_transformer *net, choir_train_event *e) {
  ch_route_summary s = ch_route_stats_summary(net->stats, net->moe_layers);
  e->imbalance = s.imbalance;
  e->dropped = s.dropped;
  e->unrouted = s.unrouted;
  e->fill = s.fill;
}

/* Gradients of all micro-batches, and the update. Nothing is updated from what is not finite. */
int ch_run_step(ch_run *run, choir_train_event *e) {
  const choir_train_config *c = &run->config.train;
  double sums[2] = {0};
  int64_t number = run->step + 1;
  int in_backward = run->model->share_gradients;
  ch_update update = {.x = &run->model->x, .optimizer = &run->optimizer, .step = number};
  ch_transformer_clear_stats(&run->model->net);
  for (int a = 0; a < c->accumulate; a++) micro_batch(run, a, in_backward ? &update : NULL, sums);
  CH_TRY(add_ranks(run, sums, 2));
  e->loss = sums[0];
  e->aux_loss = sums[1];
  e->gradient_norm = ch_update_finish(&update, in_backward, e->loss);
  e->rate = ch_schedule_rate(c, number);
  tell_routing(&run->model->net, e);
  if (update.stopped) return ch_run_not_finite(run, number, e->loss);
  run->step = number;
  e->step = number;
  e->tokens = number * c->batch_sequences * c->sequence_length * c->accumulate * run->comm->size;
  return CHOIR_OK;
}
