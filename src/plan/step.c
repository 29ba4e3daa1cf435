#include "plan/step.h"

#include <stdio.h>
#include <string.h>

#include "train/step.h"

/* What is computed; behind these stand the flows. */
enum { UPDATE = CH_FLOPS_PARTS, COMPUTED };

static const char *const part_names[COMPUTED] = {"attention", "dense layers", "routing", "experts", "head", "update"};

/* Training runs every product forward and twice backward. */
enum { PRODUCTS = 3 };

/* Readings and writings of memory for every element: of a weight by its products (read, read, its gradient written);
 * of a score by selection (gathered, read to select and to count, cleared for its gradient); of a weight by its update
 * (adafactor: the gradient four times, the weight twice and once to write; adamw: the gradient twice, the weight and
 * two means read and written). */
enum { PRODUCT_PASSES = 3, SELECT_PASSES = 4, ADAFACTOR_PASSES = 7, ADAMW_PASSES = 8 };

typedef struct {
  const choir_config *config;
  const ch_params *params;
  const ch_cluster *cluster;
  const ch_layout *layout;
  double flops[CH_FLOPS_PARTS];   /* of a token, forward */
  double weights[CH_FLOPS_PARTS]; /* elements that a rank multiplies with */
  double tokens;                  /* of a rank in a step, every draw */
} job;

double ch_peak_of(const choir_config *config, const ch_cluster *cluster) {
  return strcmp(config->train.compute, "bf16") ? cluster->fp32 : cluster->bf16;
}

/* Of all experts, what the rank that has most has. */
static double most_of_experts(const job *j) {
  int e = j->config->model.experts, groups = j->layout->experts;
  return (double)((e + groups - 1) / groups) / e / j->layout->hidden;
}

static void count_weights(job *j) {
  for (int i = 0; i < j->params->count; i++) {
    const ch_param *p = &j->params->p[i];
    double count = (double)p->whole * (p->expert ? most_of_experts(j) : 1);
    if (p->product) j->weights[ch_flops_part_of(p)] += count;
  }
}

static void take(choir_plan_part *part, double arithmetic, double memory) {
  part->seconds = arithmetic > memory ? arithmetic : memory;
  part->limit = arithmetic > memory ? "arithmetic" : "memory";
}

/* A part's products: as many FLOPs as the busiest rank has, or its weights through memory. */
static void compute(const job *j, int p, choir_plan_part *part) {
  const ch_cluster *c = j->cluster;
  const ch_layout *l = j->layout;
  double passes = j->config->train.accumulate, peak = p == CH_FLOPS_ROUTER ? c->fp32 : ch_peak_of(j->config, c);
  double uneven = p == CH_FLOPS_EXPERTS ? most_of_experts(j) * l->experts * l->hidden : 1;
  double bytes = PRODUCT_PASSES * sizeof(real) * j->weights[p] * passes;
  if (p == CH_FLOPS_ROUTER)
    bytes += SELECT_PASSES * sizeof(real) * passes *
             (double)(ch_flow_moe_layers(j->config) * ch_flow_selected(j->config, l));
  take(part, PRODUCTS * j->flops[p] * j->tokens * uneven / (peak * c->share[p]), bytes / c->memory_bandwidth);
}

static void update(const job *j, choir_plan_part *part) {
  double count = 0, passes = strcmp(j->config->train.optimizer, "adamw") ? ADAFACTOR_PASSES : ADAMW_PASSES;
  for (int i = 0; i < j->params->count; i++) {
    const ch_param *p = &j->params->p[i];
    int dealt = j->layout->dense_sharded && ch_param_is_dealt(p);
    double share = p->expert ? most_of_experts(j) : dealt ? 1.0 / (j->layout->experts * j->layout->hidden) : 1;
    count += (double)p->whole * share;
  }
  take(part, 0, passes * sizeof(real) * count / j->cluster->memory_bandwidth);
}

static void send(const job *j, ch_flow_kind kind, choir_plan_layout *out) {
  choir_plan_part *part = &out->part[COMPUTED + kind];
  ch_flow f = ch_flow_of(j->config, j->params, j->layout, kind);
  ch_passage p = ch_passage_of(j->cluster, j->layout->ranks, &f);
  *part = (choir_plan_part){.name = f.name, .sent = 1, .seconds = p.seconds, .bytes = f.bytes};
  part->limit = j->cluster->levels ? j->cluster->level[p.level].name : "";
  out->sent += f.bytes;
  for (int i = 0; i < j->cluster->levels; i++) {
    part->level_bytes[i] = p.bytes[i];
    out->level_bytes[i] += p.bytes[i];
  }
}

static double larger(double a, double b) { return a > b ? a : b; }

/* What the engine hides: an exchange of rows is cut into groups of experts, so that of each pass the first group's way
 * there and the last one's back are waited for, and between them the longer of the products, a third forward and two
 * backward, and of the other ways. */
static double hidden_rows(const job *j, const choir_plan_layout *out) {
  double rows = out->part[COMPUTED + CH_FLOW_ROWS].seconds, experts = out->part[CH_FLOPS_EXPERTS].seconds, hidden = 0;
  if (rows <= 0) return 0;
  double ends = rows / 2 / ch_flow_groups(j->config, j->layout);
  for (int pass = 1; pass < PRODUCTS; pass++) {
    double products = experts * pass / PRODUCTS, between = rows / 2 - ends;
    hidden += between < products ? between : products;
  }
  return hidden;
}

/* Matrices that visit come while the layer before computes: all but the first layer's of a pass. Links are free beside
 * attention and dense layers; where experts compute, rows travel. */
static double hidden_visits(const job *j, const choir_plan_layout *out) {
  const ch_flow f = ch_flow_of(j->config, j->params, j->layout, CH_FLOW_MATRICES);
  double products = out->part[CH_FLOPS_ATTENTION].seconds + out->part[CH_FLOPS_DENSE].seconds;
  if (f.busiest <= 0) return 0;
  double beside = out->part[COMPUTED + CH_FLOW_MATRICES].seconds * (1 - f.alone / f.busiest);
  return beside < products ? beside : products;
}

/* Rows may travel while other experts compute, all of them. Gradients of weights may travel while the layers before
 * compute their own: the backward two thirds of all products but experts'; weights that are fetched, in all of them.
 * Everything else is waited for. */
static double overlapped(const job *j, const choir_plan_layout *out, double all) {
  const choir_plan_part *p = out->part, *flow = p + COMPUTED;
  double rows = flow[CH_FLOW_ROWS].seconds;
  double gradients = flow[CH_FLOW_DENSE].seconds + flow[CH_FLOW_MATRICES].seconds + flow[CH_FLOW_EXPERTS].seconds;
  double dense = p[CH_FLOPS_ATTENTION].seconds + p[CH_FLOPS_DENSE].seconds + p[CH_FLOPS_HEAD].seconds;
  double beside = j->layout->dense_sharded ? dense : dense * 2 / 3;
  return all - rows - p[CH_FLOPS_EXPERTS].seconds + larger(rows, p[CH_FLOPS_EXPERTS].seconds) - gradients - beside +
         larger(gradients, beside);
}

static void find_bound(choir_plan_layout *out) {
  const choir_plan_part *longest = &out->part[0];
  for (int i = 1; i < out->parts; i++)
    if (out->part[i].seconds > longest->seconds) longest = &out->part[i];
  if (longest->sent)
    snprintf(out->bound, sizeof out->bound, "%s on level %s", longest->name, longest->limit);
  else
    snprintf(out->bound, sizeof out->bound, "%s, by %s", longest->name, longest->limit);
}

void ch_step_of(const choir_config *config, const ch_params *params, const ch_cluster *cluster, const ch_layout *layout,
                choir_plan_layout *out) {
  job j = {.config = config, .params = params, .cluster = cluster, .layout = layout};
  double draws = (double)ch_pass_sequences(config) / config->train.batch_sequences, model = 0;
  double tokens = (double)ch_step_tokens(&config->train);
  j.tokens = tokens * draws / layout->ranks;
  ch_count_flops(config, params, j.flops);
  count_weights(&j);
  for (int p = 0; p < CH_FLOPS_PARTS; p++) {
    compute(&j, p, &out->part[p]);
    model += PRODUCTS * j.flops[p] * draws;
  }
  update(&j, &out->part[UPDATE]);
  for (int i = 0; i < COMPUTED; i++) out->part[i].name = part_names[i];
  for (int kind = 0; kind < CH_FLOWS; kind++) send(&j, (ch_flow_kind)kind, out);
  out->parts = COMPUTED + CH_FLOWS;
  for (int i = 0; i < out->parts; i++) out->seconds += out->part[i].seconds;
  out->overlapped = overlapped(&j, out, out->seconds);
  out->seconds -= hidden_rows(&j, out) + hidden_visits(&j, out);
  out->tokens_per_second = tokens / out->seconds;
  out->share = model * out->tokens_per_second / (layout->ranks * ch_peak_of(config, cluster));
  out->cost = cluster->price * layout->ranks * 1e9 / out->tokens_per_second / 3600;
  find_bound(out);
}
