#include "train/step.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "comm/collective.h"
#include "model/capacity.h"
#include "moe/route_stats.h"

/* ch_pass.ready, if nothing needs all gradients at once: updates a layer inside the backward pass. */
static void update_layer(void *context, const ch_pass *pass, int layer) {
  ch_trainer *t = context;
  double CH_DEV *guard = pass->sums + CH_PASS_GUARD;
  const double no_norm = 0; /* the norm is used for clipping only, which is off here */
  ch_optimizer_squares(&t->model->x, &t->optimizer, layer, guard);
  ch_optimizer_step(&t->model->x, &t->optimizer, layer, t->step + 1, no_norm, guard);
}

static double norm_of(ch_trainer *t) {
  ch_exec *x = &t->model->x;
  CH_SCRATCH(x);
  const double *squares = ch_optimizer_read_squares(x, &t->optimizer);
  double sum = 0;
  for (int i = 0; i < t->optimizer.params->count; i++) sum += squares[i];
  return sqrt(sum);
}

/* State shared by the micro-batches of a step: the number of targets, and the sums of losses. */
typedef struct {
  double targets; /* in all micro-batches; 0: the step has no loss */
  double loss, aux_loss, z_loss;
} step_state;

/* Runs the step's micro-batch `a`, forward and backward, including the layers' updates if these are made within the
 * backward pass. */
static void run_pass(ch_trainer *t, int a, const ch_batch *b, step_state *s) {
  const choir_config *config = &t->model->config;
  const ch_train_config *c = &config->train;
  int after = config->model.router.threshold_after > 0;
  uint64_t micro = (uint64_t)(t->step * c->accumulate + a);
  double share = 1.0 / c->accumulate;
  ch_pass pass = {.B = ch_pass_sequences(config),
                  .T = b->T,
                  .grad_chunks = b->row ? 1 : c->grad_chunks,
                  .token = b->token,
                  .row = b->row,
                  .rows = b->rows,
                  .target = b->target,
                  .row_weight = b->weight,
                  .route = {.training = 1, .by_threshold = after && t->step >= config->model.router.threshold_after},
                  .gradients = 1,
                  .accumulate = a > 0,
                  .partial = a + 1 < c->accumulate,
                  .paired = t->paired != NULL,
                  .observe = 1,
                  .weight = (real)(1 / s->targets),
                  .aux_scale = (real)share,
                  .capacity = ch_config_capacity_at(config, t->step),
                  .dropout = c->dropout,
                  .ready = t->model->share_gradients ? update_layer : NULL,
                  .context = t,
                  .seed = c->seed,
                  .micro = micro};
  ch_transformer_run(&t->model->x, &t->model->net, &pass);
  s->loss += pass.loss_sum / s->targets;
  s->aux_loss += pass.aux_loss * share;
  s->z_loss += pass.z_loss * share;
}

/* A micro-batch [2 batch_sequences,T] in which every sequence occurs twice, in t->paired. */
static ch_batch paired_batch(const ch_trainer *t, const ch_batch *b) {
  int64_t n = (int64_t)t->model->config.train.batch_sequences * b->T, targets = b->row ? b->rows : n;
  int32_t *token = t->paired, *target = token + 2 * n, *row = target + 2 * targets;
  for (int i = 0; i < 2; i++) {
    memcpy(token + i * n, b->token, (size_t)n * sizeof *token);
    memcpy(target + i * targets, b->target, (size_t)targets * sizeof *target);
    for (int r = 0; r < b->rows && b->row; r++) row[i * b->rows + r] = (int32_t)(i * n + b->row[r]);
  }
  return (ch_batch){.T = b->T, .token = token, .row = b->row ? row : NULL, .rows = 2 * b->rows, .target = target};
}

/* Training by masking has targets at masked tokens only (ch_model_picks_rows): copies their rows, targets and
 * weights to t->picked, so that the head runs on these rows only. */
static ch_batch masked_rows(const ch_trainer *t, const ch_batch *b) {
  int64_t n = (int64_t)t->model->config.train.batch_sequences * b->T;
  int32_t *row = t->picked, *target = row + n;
  float *weight = (float *)(target + n);
  int rows = 0;
  for (int32_t i = 0; i < n; i++) {
    if (b->target[i] < 0) continue;
    row[rows] = i;
    target[rows] = b->target[i];
    if (b->weight) weight[rows] = b->weight[i];
    rows++;
  }
  if (!rows) return *b;
  return (ch_batch){
      .T = b->T, .token = b->token, .row = row, .rows = rows, .target = target, .weight = b->weight ? weight : NULL};
}

int ch_trainer_not_finite(const ch_trainer *t, int64_t step, double loss) {
  ch_exec *x = &t->model->x;
  const char *what = "weight", *name = ch_model_bad_weight(t->model);
  CH_SCRATCH(x);
  const double *squares = ch_optimizer_read_squares(x, &t->optimizer);
  for (int i = 0; !name && i < t->model->net.params.count; i++) {
    what = "gradient";
    if (!isfinite(squares[i])) name = t->model->net.params.p[i].name;
  }
  CH_TRY(ch_comm_agree(x->comm, ch_exec_check(x)));
  return ch_error(CHOIR_ERROR_NUMERIC,
                  "step %" PRId64
                  ": loss %g; first tensor that is not finite: %s%s%s. Nothing of this step was kept; resume from "
                  "the last checkpoint with a lower train.learning_rate or with train.clip_norm",
                  step, loss, name ? what : "none, the loss alone", name ? " of " : "", name ? name : "");
}

int ch_trainer_check(const ch_trainer *t, double loss) {
  if (ch_model_bad_weight(t->model)) return ch_trainer_not_finite(t, t->step, loss);
  return ch_exec_check(&t->model->x);
}

/* Updates the routers' state. An error of a plug-in's `observe` is returned here, so that no later caller has to
 * check for it. */
static int end_step(ch_trainer *t) {
  ch_exec *x = &t->model->x;
  ch_transformer_end_step(x, &t->model->net);
  if (!ch_exec_refused(x)) return CHOIR_OK; /* the same on all ranks */
  t->model->half_step = t->step + 1;
  return ch_exec_check(x);
}

/* The rest of the update after the passes, or all of it if layers were not updated within them. Nothing is updated
 * from values that are not finite. */
static int finish_step(ch_trainer *t, const step_state *s, choir_trainer_result *r) {
  ch_transformer *net = &t->model->net;
  ch_exec *x = &t->model->x;
  int rest = t->model->share_gradients ? CH_OUTSIDE_LAYERS : CH_EVERY_PARAM;
  const ch_route_summary routing = ch_route_stats_summary(net->stats, net->moe_layers);
  *r = (choir_trainer_result){.step = t->step + 1,
                              .loss = s->loss,
                              .aux_loss = s->aux_loss,
                              .z_loss = s->z_loss,
                              .learning_rate = ch_schedule_learning_rate(&t->model->config.train, t->step + 1),
                              .dropped = routing.dropped,
                              .unrouted = routing.unrouted,
                              .imbalance = routing.imbalance,
                              .fill = routing.fill};
  memcpy(r->fullest, routing.fullest, sizeof r->fullest);
  ch_optimizer_squares(x, &t->optimizer, rest, NULL);
  r->gradient_norm = norm_of(t);
  if (!isfinite(r->gradient_norm) || !isfinite(r->loss)) return ch_trainer_not_finite(t, t->step + 1, r->loss);
  ch_optimizer_step(x, &t->optimizer, rest, t->step + 1, r->gradient_norm, NULL);
  CH_TRY(end_step(t));
  t->step++;
  return CHOIR_OK;
}

/* The number of positions over which a loss is averaged: those with a target, or all tokens that are read. */
static int64_t targets_of(const ch_train_config *c, const ch_batch *b) {
  int64_t rows = b->row ? b->rows : (int64_t)c->batch_sequences * b->T, count = 0;
  for (int64_t r = 0; r < rows; r++) count += b->weight ? b->token[r] >= 0 : b->target[r] >= 0;
  return count;
}

int ch_trainer_step_on(ch_trainer *t, const ch_batch *batches, choir_trainer_result *r) {
  const ch_train_config *c = &t->model->config.train;
  int64_t targets = 0;
  CH_TRY(ch_model_check_whole(t->model));
  t->model->evaluated[0] = t->model->evaluated[1] = 0;
  for (int a = 0; a < c->accumulate; a++) targets += targets_of(c, &batches[a]);
  step_state s = {.targets = targets ? (double)targets * (t->paired ? 2 : 1) : 1};
  ch_transformer_clear_stats(&t->model->net);
  for (int a = 0; a < c->accumulate; a++) {
    const ch_batch b = t->paired                      ? paired_batch(t, &batches[a])
                       : t->picked && !batches[a].row ? masked_rows(t, &batches[a])
                                                      : batches[a];
    run_pass(t, a, &b, &s);
  }
  int code = finish_step(t, &s, r);
  r->targets = targets;
  return code;
}

const ch_batch *ch_trainer_cut(ch_trainer *t, const int32_t *token, const int32_t *target, const float *weight) {
  const ch_train_config *c = &t->model->config.train;
  int64_t once = (int64_t)c->batch_sequences * c->sequence_length;
  for (int a = 0; a < c->accumulate; a++)
    t->batch[a] = (ch_batch){.T = c->sequence_length,
                             .token = token + a * once,
                             .target = target + a * once,
                             .weight = weight ? weight + a * once : NULL};
  return t->batch;
}

int ch_trainer_step(ch_trainer *t, const int32_t *token, const int32_t *target, choir_trainer_result *r) {
  return ch_trainer_step_on(t, ch_trainer_cut(t, token, target, NULL), r);
}

int ch_trainer_is_due(const ch_trainer *t, int64_t every) {
  return t->step == t->model->config.train.steps || (every > 0 && t->step % every == 0);
}

int ch_trainer_stopped(const ch_trainer *t) {
  return ch_error(CHOIR_ERROR_INTERRUPTED, "stopped after step %" PRId64 " of %" PRId64 "; its checkpoint is saved",
                  t->step, t->model->config.train.steps);
}
