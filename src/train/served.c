/* The cost of serving compared with training: experts per token with threshold routing and with the router's own
 * choice. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "data/data.h"
#include "train/evaluate.h"

static const double tolerance = 0.1;

/* 0: batch routing, as in training; 1: threshold routing; -1: another routing or capacity, which is not compared. */
static int side_of(const choir_model *model) {
  const ch_router_spec *o = &model->config.model.router;
  if (!model->net.moe_layers || !ch_router_has_thresholds(o->kind) || o->capacity_schedule != CH_CAPACITY_CONSTANT ||
      ch_router_factor(&model->net.config.router, 0) != ch_router_factor(o, 1))
    return -1;
  if (model->causal) return model->causal == CH_BY_THRESHOLDS ? 1 : -1;
  return model->net.config.router.pool == o->pool ? 0 : -1;
}

static uint64_t hash_of(const ch_windows *w, int B, int64_t end) {
  const int64_t numbers[] = {w->length, w->stride, B, end};
  uint64_t text = w->data ? w->data->hash : XXH64(w->text, (size_t)w->text_tokens * sizeof *w->text, 0);
  return XXH64(numbers, sizeof numbers, text) | 1;
}

static int layer_number(const choir_model *model, int moe) {
  for (int l = 0; l < model->net.config.layers; l++)
    if (model->net.block[l].moe == moe) return l;
  return -1;
}

static void compare(const choir_model *model) {
  const double *const *experts = (const double *const *)model->experts_per_token;
  int worst = 0, beyond = 0, layers = model->net.moe_layers;
  double max = 0;
  for (int i = 0; i < layers; i++) {
    double change = experts[0][i] > 0 ? fabs(experts[1][i] / experts[0][i] - 1) : experts[1][i] > 0;
    beyond += change > tolerance;
    if (change > max) max = change, worst = i;
  }
  if (!beyond) return;
  ch_notice(
      "layer %d: threshold routing assigns %.2f experts per token, and router '%s' itself, as in training, %.2f; %d of "
      "%d MoE layers differ by more than 10 %%. The model is served at another cost than it was trained at, so its "
      "loss with threshold routing does not compare at equal FLOPs. Possible causes: a very short training, a text "
      "unlike that of training, or a router that does not rank by its scores (docs/adding-a-router.md)",
      layer_number(model, worst), experts[1][worst], model->net.router->name, experts[0][worst], beyond, layers);
}

void ch_note_served_cost(choir_model *model, const ch_windows *windows, int B, int64_t end) {
  int side = side_of(model), layers = model->net.moe_layers;
  if (windows->observe) model->evaluated[0] = model->evaluated[1] = 0; /* this evaluation changes the thresholds */
  if (side < 0 || windows->unfinished || windows->observe) return;
  if (!model->experts_per_token[side] && CH_ALLOC(&model->experts_per_token[side], layers, "statistics of layers"))
    return;
  for (int i = 0; i < layers; i++) {
    const choir_route_stats *s = &model->net.stats[i];
    model->experts_per_token[side][i] = s->tokens ? (double)s->assignments / (double)s->tokens : 0;
  }
  model->evaluated[side] = hash_of(windows, B, end);
  if (model->evaluated[0] == model->evaluated[1]) compare(model);
}
