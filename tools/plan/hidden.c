/* The engine cuts a pass into halves of layers, and what is under way beside one must have come when it ends: so each
 * half hides as much as it computes, and no half for another one. */
#include "plan/hidden.h"

#include <math.h>
#include <string.h>

#include "plan/dense.h"
#include "train/update.h"

/* Runs of a product: training runs it forward and twice backward. */
enum { FORWARD = 1, BACKWARD = 2, PRODUCTS = FORWARD + BACKWARD };

/* Readings and writings of memory for every element of a weight (adafactor: the gradient four times, the weight twice
 * and once to write; adamw: the gradient twice, the weight and two means read and written). */
enum { ADAFACTOR_PASSES = 7, ADAMW_PASSES = 8 };

typedef struct {
  const choir_config *config;
  const ch_params *params;
  const ch_cluster *cluster;
  const ch_layout *layout;
  const ch_shown *shown;
  ch_dealing dealing;
} job;

/* ---- the update ---- */

static double seconds_of(const job *j, double elements) {
  double passes = strcmp(j->config->train.optimizer, "adamw") ? ADAFACTOR_PASSES : ADAMW_PASSES;
  return passes * sizeof(real) * elements / j->cluster->memory_bandwidth;
}

double ch_most_of_experts(const choir_config *config, const ch_layout *layout) {
  int e = config->model.experts, most = (e + layout->experts - 1) / layout->experts;
  return (double)most / e / layout->hidden;
}

/* Elements of a layer (-1: outside of layers) that every rank updates; of experts as many as the rank that has most. */
static double on_every_rank(const job *j, int layer) {
  double count = 0, of_experts = ch_most_of_experts(j->config, j->layout);
  for (int i = ch_params_first(j->params, layer); i < j->params->count; i++) {
    const ch_param *p = &j->params->p[i];
    if (layer >= 0 && p->layer != layer) break;
    if (p->layer == layer && !(j->layout->dense_sharded && ch_param_is_dealt(p)))
      count += (double)p->whole * (p->expert ? of_experts : 1);
  }
  return count;
}

/* Where layers are updated within backward, the others wait in each of them for who owns most of it. */
double ch_update_seconds(const choir_config *config, const ch_params *params, const ch_cluster *cluster,
                         const ch_layout *layout) {
  job j = {.config = config, .params = params, .cluster = cluster, .layout = layout};
  double count = on_every_rank(&j, -1), most = 0, of_layers = 0;
  j.dealing = (ch_dealing){.config = config, .params = params, .layout = layout};
  for (int l = 0; l < config->model.layers; l++) {
    count += on_every_rank(&j, l);
    of_layers += ch_deal_layer(&j.dealing, l).most;
  }
  for (int r = 0; r < layout->experts * layout->hidden; r++)
    if ((double)j.dealing.has[r] > most) most = (double)j.dealing.has[r];
  return seconds_of(&j, count + (ch_update_in_backward(&config->train) ? of_layers : most));
}

/* ---- what passes beside a half ---- */

static double visit_seconds(const job *j, const ch_flow *step) {
  return ch_passage_of(j->cluster, j->layout->ranks, step).seconds;
}

static double beside_attention(const job *j, int times, const ch_flow *step, double update) {
  double products = j->shown->attention * times / PRODUCTS / j->config->model.layers;
  return fmin(visit_seconds(j, step), products + update);
}

/* An exchange of rows is cut into groups of experts, of which the first one's way there and the last one's back are
 * waited for; what visits sets out behind the first, so that links carry it and the other ways beside the products. */
static double beside_ffn(const job *j, int layer, int times, const ch_flow *step) {
  int moe = ch_flow_moe_layers(j->config);
  double visit = visit_seconds(j, step);
  if (!ch_config_is_moe(&j->config->model, layer))
    return fmin(visit, j->shown->dense * times / PRODUCTS / (j->config->model.layers - moe));
  double rows = j->shown->rows / 2 / moe, ends = rows / ch_flow_groups(j->config, j->layout);
  return fmin(visit + rows - ends, j->shown->experts * times / PRODUCTS / moe);
}

/* Layer `number` visits while the one before runs forward, and while the one behind runs backward and is updated. The
 * last two layers' are still there when backward begins. */
static double beside_neighbours(const job *j, int number, const ch_owned *layer, const ch_owned *behind) {
  const ch_flow none[CH_VISIT_STEPS] = {{0}};
  ch_flow steps[CH_VISIT_STEPS];
  int layers = j->config->model.layers;
  double hidden = 0, update = 0;
  ch_flow_visit(&j->dealing, layer, steps);
  if (number > 0) hidden += beside_attention(j, FORWARD, &steps[0], 0) + beside_ffn(j, number - 1, FORWARD, &steps[1]);
  if (number + 1 >= layers) return hidden;
  const ch_flow *visit = number + 2 < layers ? steps : none;
  if (ch_update_in_backward(&j->config->train)) update = seconds_of(j, on_every_rank(j, number + 1) + behind->most);
  return hidden + beside_ffn(j, number + 1, BACKWARD, &visit[0]) + beside_attention(j, BACKWARD, &visit[1], update);
}

double ch_hidden_seconds(const choir_config *config, const ch_params *params, const ch_cluster *cluster,
                         const ch_layout *layout, const ch_shown *shown) {
  job j = {.config = config, .params = params, .cluster = cluster, .layout = layout, .shown = shown};
  ch_owned layer = {0}, behind;
  double hidden = 0;
  j.dealing = (ch_dealing){.config = config, .params = params, .layout = layout};
  for (int number = -1; number <= config->model.layers; number++, layer = behind) {
    behind = ch_deal_layer(&j.dealing, number + 1);
    hidden += beside_neighbours(&j, number, &layer, &behind);
  }
  return hidden;
}
