#include "train/step.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "plan/traffic.h"

/* The update is a computed part, too; exchanges follow after it. */
enum { UPDATE = CH_FLOPS_PARTS, COMPUTED };

static const char *const part_names[COMPUTED] = {"attention", "dense layers", "routing", "experts", "head", "update"};

/* How often a product runs: once forward and twice backward. */
enum { FORWARD = 1, BACKWARD = 2, PRODUCTS = FORWARD + BACKWARD };

/* Memory accesses per element: of a weight by its products (read, read, gradient written); of a score by selection
 * (gathered, read to select and to count, cleared for its gradient). */
enum { PRODUCT_PASSES = 3, SELECT_PASSES = 4 };

/* Memory accesses per element of a weight in its update (adafactor: the gradient four times, the weight read twice
 * and written once; adamw: the gradient twice, the weight and two moments read and written). */
enum { ADAFACTOR_PASSES = 7, ADAMW_PASSES = 8 };

typedef struct {
  const choir_config *config;
  const ch_params *params;
  const ch_cluster *cluster;
  const ch_layout *layout;
  double flops[CH_FLOPS_PARTS];   /* per token, forward */
  double weights[CH_FLOPS_PARTS]; /* elements of weights in a rank's products */
  double tokens;                  /* tokens of a rank in a step, for every router sample */
  ch_dense_owners dealing;        /* owners of dense matrices, up to the current layer */
  const ch_plan_part *part;       /* parts of the layout */
} step_job;

double ch_peak_of(const choir_config *config, const ch_cluster *cluster) {
  return config->train.compute != CH_COMPUTE_BF16 ? cluster->fp32 : cluster->bf16;
}

/* The largest share of the experts on one rank. */
static double max_of_experts(const step_job *j) {
  int e = j->config->model.experts, max = (e + j->layout->experts - 1) / j->layout->experts;
  return (double)max / e / j->layout->hidden;
}

static void count_weights(step_job *j) {
  for (int i = 0; i < j->params->count; i++) {
    const ch_param *p = &j->params->p[i];
    double count = (double)p->whole * (p->expert ? max_of_experts(j) : 1);
    if (p->product) j->weights[ch_flops_part_of(p)] += count;
  }
}

static void take_longer(ch_plan_part *part, double arithmetic, double memory) {
  part->seconds = arithmetic > memory ? arithmetic : memory;
  part->limit = arithmetic > memory ? "arithmetic" : "memory";
}

/* Time of a part's products: the busiest rank's FLOPs, or reading its weights from memory. */
static void compute(const step_job *j, int p, ch_plan_part *part) {
  const ch_cluster *c = j->cluster;
  const ch_layout *l = j->layout;
  double passes = j->config->train.accumulate, peak = p == CH_FLOPS_ROUTER ? c->fp32 : ch_peak_of(j->config, c);
  double uneven = p == CH_FLOPS_EXPERTS ? max_of_experts(j) * l->experts * l->hidden : 1;
  double bytes = PRODUCT_PASSES * sizeof(real) * j->weights[p] * passes;
  if (p == CH_FLOPS_ROUTER)
    bytes += SELECT_PASSES * sizeof(real) * passes *
             (double)(ch_config_moe_layers(&j->config->model) * ch_flow_selected(j->config, l));
  take_longer(part, PRODUCTS * j->flops[p] * j->tokens * uneven / (peak * c->share[p]), bytes / c->memory_bandwidth);
}

static void send(const step_job *j, ch_flow_kind kind, ch_plan_layout *out) {
  ch_plan_part *part = &out->part[COMPUTED + kind];
  ch_flow f = ch_flow_of(j->config, j->params, j->layout, kind);
  ch_passage p = ch_passage_of(j->cluster, j->layout->ranks, &f);
  *part = (ch_plan_part){.name = f.name, .sent = 1, .seconds = p.seconds, .bytes = f.bytes};
  part->limit = j->cluster->levels ? j->cluster->level[p.level].name : "";
  out->sent += f.bytes;
  for (int i = 0; i < j->cluster->levels; i++) {
    part->level_bytes[i] = p.bytes[i];
    out->level_bytes[i] += p.bytes[i];
  }
}

/* ---- the update ---- */

static double seconds_of(const step_job *j, double elements) {
  double passes = j->config->train.optimizer != CH_ADAMW ? ADAFACTOR_PASSES : ADAMW_PASSES;
  return passes * sizeof(real) * elements / j->cluster->memory_bandwidth;
}

/* Elements of a layer (-1: outside of layers) that every rank updates; for experts, those of the rank with the most. */
static double on_every_rank(const step_job *j, int layer) {
  double count = 0, of_experts = max_of_experts(j);
  for (int i = ch_params_first(j->params, layer); i < j->params->count; i++) {
    const ch_param *p = &j->params->p[i];
    if (layer >= 0 && p->layer != layer) break;
    if (p->layer == layer && !(j->layout->dense_sharded && ch_param_is_shardable(p)))
      count += (double)p->whole * (p->expert ? of_experts : 1);
  }
  return count;
}

/* Seconds of the update on the rank with most parameters. If layers are updated during backward, every layer waits for
 * the rank that owns most of that layer. */
static double update_seconds(step_job *j) {
  double count = on_every_rank(j, -1), max = 0, of_layers = 0;
  j->dealing = (ch_dense_owners){.config = j->config, .params = j->params, .layout = j->layout};
  for (int l = 0; l < j->config->model.layers; l++) {
    count += on_every_rank(j, l);
    of_layers += ch_owned_of_layer(&j->dealing, l).max;
  }
  for (int r = 0; r < j->layout->experts * j->layout->hidden; r++) max = fmax(max, (double)j->dealing.has[r]);
  return seconds_of(j, count + (ch_update_in_backward(&j->config->train) ? of_layers : max));
}

/* ---- overlap of exchanges with computation ----
 * Training divides a pass into halves of layers, and an exchange during a half must end with it: so each half hides at
 * most the time of its own computation. */

static double prefetch_seconds(const step_job *j, const ch_flow *step) {
  return ch_passage_of(j->cluster, j->layout->ranks, step).seconds;
}

static double during_attention(const step_job *j, int times, const ch_flow *step, double update) {
  double products = j->part[CH_FLOPS_ATTENTION].seconds * times / PRODUCTS / j->config->model.layers;
  return fmin(prefetch_seconds(j, step), products + update);
}

/* An exchange of rows is cut into groups of experts. The step waits for the first group's way to the experts and the
 * last group's way back. The prefetch begins after the first group; it and the other groups overlap with the products.
 */
static double during_ffn(const step_job *j, int layer, int times, const ch_flow *step) {
  int moe = ch_config_moe_layers(&j->config->model);
  double prefetch = prefetch_seconds(j, step);
  if (!ch_config_is_moe(&j->config->model, layer))
    return fmin(prefetch, j->part[CH_FLOPS_DENSE].seconds * times / PRODUCTS / (j->config->model.layers - moe));
  double rows = j->part[COMPUTED + CH_FLOW_ROWS].seconds / 2 / moe, ends = rows / ch_flow_groups(j->config, j->layout);
  return fmin(prefetch + rows - ends, j->part[CH_FLOPS_EXPERTS].seconds * times / PRODUCTS / moe);
}

/* Layer `number` is prefetched while the previous layer runs forward, and while the next layer runs backward and is
 * updated. The last two layers are still resident when backward begins. */
static double during_neighbours(const step_job *j, int number, const ch_owned *layer, const ch_owned *behind) {
  const ch_flow none[CH_PREFETCH_STEPS] = {{0}};
  ch_flow steps[CH_PREFETCH_STEPS];
  int layers = j->config->model.layers;
  double hidden = 0, update = 0;
  ch_flow_prefetch(&j->dealing, layer, steps);
  if (number > 0) hidden += during_attention(j, FORWARD, &steps[0], 0) + during_ffn(j, number - 1, FORWARD, &steps[1]);
  if (number + 1 >= layers) return hidden;
  const ch_flow *prefetch = number + 2 < layers ? steps : none;
  if (ch_update_in_backward(&j->config->train)) update = seconds_of(j, on_every_rank(j, number + 1) + behind->max);
  return hidden + during_ffn(j, number + 1, BACKWARD, &prefetch[0]) +
         during_attention(j, BACKWARD, &prefetch[1], update);
}

/* Seconds of exchanges that are hidden by computation. */
static double hidden_seconds(step_job *j) {
  ch_owned layer = {0}, behind;
  double hidden = 0;
  j->dealing = (ch_dense_owners){.config = j->config, .params = j->params, .layout = j->layout};
  for (int number = -1; number <= j->config->model.layers; number++, layer = behind) {
    behind = ch_owned_of_layer(&j->dealing, number + 1);
    hidden += during_neighbours(j, number, &layer, &behind);
  }
  return hidden;
}

/* ---- totals ---- */

/* The time of a step with maximal overlap: all rows may be sent while other experts compute. Gradients may be sent
 * during the backward pass of earlier layers, which is two thirds of all products except experts'; prefetched weights
 * during all of these products. All other exchanges are not overlapped. */
static double overlapped(const step_job *j, const ch_plan_layout *out, double all) {
  const ch_plan_part *p = out->part, *flow = p + COMPUTED;
  double rows = flow[CH_FLOW_ROWS].seconds;
  double gradients = flow[CH_FLOW_DENSE].seconds + flow[CH_FLOW_MATRICES].seconds + flow[CH_FLOW_EXPERTS].seconds;
  double dense = p[CH_FLOPS_ATTENTION].seconds + p[CH_FLOPS_DENSE].seconds + p[CH_FLOPS_HEAD].seconds;
  double dense_overlap = j->layout->dense_sharded ? dense : dense * 2 / 3;
  return all - rows - p[CH_FLOPS_EXPERTS].seconds + fmax(rows, p[CH_FLOPS_EXPERTS].seconds) - gradients -
         dense_overlap + fmax(gradients, dense_overlap);
}

static void find_bound(ch_plan_layout *out) {
  const ch_plan_part *longest = &out->part[0];
  for (int i = 1; i < out->parts; i++)
    if (out->part[i].seconds > longest->seconds) longest = &out->part[i];
  if (longest->sent)
    snprintf(out->bound, sizeof out->bound, "%s on level %s", longest->name, longest->limit);
  else
    snprintf(out->bound, sizeof out->bound, "%s, by %s", longest->name, longest->limit);
}

void ch_step_of(const choir_config *config, const ch_params *params, const ch_cluster *cluster, const ch_layout *layout,
                ch_plan_layout *out) {
  step_job j = {.config = config, .params = params, .cluster = cluster, .layout = layout, .part = out->part};
  double draws = (double)ch_pass_sequences(config) / config->train.batch_sequences, model = 0;
  double tokens = (double)ch_step_tokens(&config->train);
  j.tokens = tokens * draws / layout->ranks;
  ch_count_flops(config, params, j.flops);
  count_weights(&j);
  for (int p = 0; p < CH_FLOPS_PARTS; p++) {
    compute(&j, p, &out->part[p]);
    model += PRODUCTS * j.flops[p] * draws;
  }
  take_longer(&out->part[UPDATE], 0, update_seconds(&j));
  for (int i = 0; i < COMPUTED; i++) out->part[i].name = part_names[i];
  for (int kind = 0; kind < CH_FLOWS; kind++) send(&j, (ch_flow_kind)kind, out);
  out->parts = COMPUTED + CH_FLOWS;
  for (int i = 0; i < out->parts; i++) out->seconds += out->part[i].seconds;
  out->overlapped = overlapped(&j, out, out->seconds);
  out->seconds -= hidden_seconds(&j);
  out->tokens_per_second = tokens / out->seconds;
  out->share = model * out->tokens_per_second / (layout->ranks * ch_peak_of(config, cluster));
  out->cost = cluster->price * layout->ranks * 1e9 / out->tokens_per_second / 3600;
  find_bound(out);
}
