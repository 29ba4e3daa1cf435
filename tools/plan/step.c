#include "plan/step.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/hidden.h"
#include "train/step.h"

/* The update is computed, too; behind it stand the flows. */
enum { UPDATE = CH_FLOPS_PARTS, COMPUTED };

static const char *const part_names[COMPUTED] = {"attention", "dense layers", "routing", "experts", "head", "update"};

/* Training runs every product forward and twice backward. */
enum { PRODUCTS = 3 };

/* Readings and writings of memory for every element: of a weight by its products (read, read, its gradient written);
 * of a score by selection (gathered, read to select and to count, cleared for its gradient). */
enum { PRODUCT_PASSES = 3, SELECT_PASSES = 4 };

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

static void count_weights(job *j) {
  for (int i = 0; i < j->params->count; i++) {
    const ch_param *p = &j->params->p[i];
    double count = (double)p->whole * (p->expert ? ch_most_of_experts(j->config, j->layout) : 1);
    if (p->product) j->weights[ch_flops_part_of(p)] += count;
  }
}

static void take(ch_plan_part *part, double arithmetic, double memory) {
  part->seconds = arithmetic > memory ? arithmetic : memory;
  part->limit = arithmetic > memory ? "arithmetic" : "memory";
}

/* A part's products: as many FLOPs as the busiest rank has, or its weights through memory. */
static void compute(const job *j, int p, ch_plan_part *part) {
  const ch_cluster *c = j->cluster;
  const ch_layout *l = j->layout;
  double passes = j->config->train.accumulate, peak = p == CH_FLOPS_ROUTER ? c->fp32 : ch_peak_of(j->config, c);
  double uneven = p == CH_FLOPS_EXPERTS ? ch_most_of_experts(j->config, j->layout) * l->experts * l->hidden : 1;
  double bytes = PRODUCT_PASSES * sizeof(real) * j->weights[p] * passes;
  if (p == CH_FLOPS_ROUTER)
    bytes += SELECT_PASSES * sizeof(real) * passes *
             (double)(ch_flow_moe_layers(j->config) * ch_flow_selected(j->config, l));
  take(part, PRODUCTS * j->flops[p] * j->tokens * uneven / (peak * c->share[p]), bytes / c->memory_bandwidth);
}

static void send(const job *j, ch_flow_kind kind, ch_plan_layout *out) {
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

/* Rows may travel while other experts compute, all of them. Gradients of weights may travel while the layers before
 * compute their own: the backward two thirds of all products but experts'; weights that are fetched, in all of them.
 * Everything else is waited for. */
static double overlapped(const job *j, const ch_plan_layout *out, double all) {
  const ch_plan_part *p = out->part, *flow = p + COMPUTED;
  double rows = flow[CH_FLOW_ROWS].seconds;
  double gradients = flow[CH_FLOW_DENSE].seconds + flow[CH_FLOW_MATRICES].seconds + flow[CH_FLOW_EXPERTS].seconds;
  double dense = p[CH_FLOPS_ATTENTION].seconds + p[CH_FLOPS_DENSE].seconds + p[CH_FLOPS_HEAD].seconds;
  double beside = j->layout->dense_sharded ? dense : dense * 2 / 3;
  return all - rows - p[CH_FLOPS_EXPERTS].seconds + fmax(rows, p[CH_FLOPS_EXPERTS].seconds) - gradients - beside +
         fmax(gradients, beside);
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
  take(&out->part[UPDATE], 0, ch_update_seconds(config, params, cluster, layout));
  for (int i = 0; i < COMPUTED; i++) out->part[i].name = part_names[i];
  for (int kind = 0; kind < CH_FLOWS; kind++) send(&j, (ch_flow_kind)kind, out);
  out->parts = COMPUTED + CH_FLOWS;
  for (int i = 0; i < out->parts; i++) out->seconds += out->part[i].seconds;
  out->overlapped = overlapped(&j, out, out->seconds);
  const ch_plan_part *p = out->part;
  const ch_shown shown = {.attention = p[CH_FLOPS_ATTENTION].seconds,
                          .dense = p[CH_FLOPS_DENSE].seconds,
                          .experts = p[CH_FLOPS_EXPERTS].seconds,
                          .rows = p[COMPUTED + CH_FLOW_ROWS].seconds};
  out->seconds -= ch_hidden_seconds(config, params, cluster, layout, &shown);
  out->tokens_per_second = tokens / out->seconds;
  out->share = model * out->tokens_per_second / (layout->ranks * ch_peak_of(config, cluster));
  out->cost = cluster->price * layout->ranks * 1e9 / out->tokens_per_second / 3600;
  find_bound(out);
}
