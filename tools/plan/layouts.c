/* ch_plan_*: every layout of a config on a cluster, possible and refused ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/format.h"
#include "plan/plan.h"
#include "train/step.h"

/* ---- one layout ---- */

static const double gib = 0x1p30;

/* Lists the largest purposes that together need nine tenths of the memory. */
static void name_largest(const ch_plan_layout *l, char *text, size_t size) {
  int64_t named = 0, before = INT64_MAX;
  for (size_t used = 0; named < l->bytes / 10 * 9 && used < size;) {
    const ch_plan_purpose *next = NULL;
    for (int i = 0; i < l->purposes; i++)
      if (l->memory[i].bytes < before && (!next || l->memory[i].bytes > next->bytes)) next = &l->memory[i];
    if (!next) break;
    used += (size_t)ch_format(text + used, size - used, "%s%s %.1f", used ? ", " : "", next->name,
                              (double)next->bytes / gib);
    named += before = next->bytes;
  }
}

static int add_layout(ch_plan *plan, const ch_layout *l) {
  char largest[256] = "";
  CH_TRY(CH_RESIZE(&plan->layout, plan->count + 1, "layouts"));
  ch_plan_layout *out = &plan->layout[plan->count++];
  *out = (ch_plan_layout){
      .replicas = l->replicas, .experts = l->experts, .hidden = l->hidden, .dense_sharded = l->dense_sharded};
  if (ch_layout_refused(&plan->config, l, out->refused, sizeof out->refused)) return CHOIR_OK;
  CH_TRY(ch_plan_memory(&plan->config, l, out));
  if ((double)out->bytes > plan->cluster.memory) {
    name_largest(out, largest, sizeof largest);
    ch_format(out->refused, sizeof out->refused, "a rank needs %.1f GiB and has %.1f (%s)", (double)out->bytes / gib,
              plan->cluster.memory / gib, largest);
  }
  if (!*out->refused) ch_step_of(&plan->config, &plan->params, &plan->cluster, l, out);
  return CHOIR_OK;
}

/* Adds the layouts in the order in which training tries them; training takes the first that fits. Layouts that keep
 * whole dense matrices on every rank come before those that shard them. */
static int add_all(ch_plan *plan) {
  ch_layout l = {.ranks = plan->ranks};
  int chosen = -1, fits = 1;
  while (ch_layout_next(&l)) {
    if (l.dense_sharded && fits) continue;
    CH_TRY(add_layout(plan, &l));
    const ch_plan_layout *last = &plan->layout[plan->count - 1];
    fits = !*last->refused || !last->bytes; /* a layout refused for its sizes is also refused with sharding */
    if (chosen < 0 && !*last->refused && !ch_layout_idles(&plan->config, &l)) chosen = plan->count - 1;
  }
  for (int i = 0; i < plan->count && chosen < 0; i++)
    if (!*plan->layout[i].refused) chosen = i;
  if (chosen >= 0) plan->layout[chosen].chosen = 1;
  return CHOIR_OK;
}

/* Sorts by time, fastest first; refused layouts last, in the order in which they were tried. */
static int by_time(const void *a, const void *b) {
  const ch_plan_layout *x = a, *y = b;
  int refused = (*x->refused != 0) - (*y->refused != 0);
  if (refused) return refused;
  if (!*x->refused && x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
  if (x->replicas != y->replicas) return x->replicas - y->replicas;
  return x->hidden != y->hidden ? x->hidden - y->hidden : x->dense_sharded - y->dense_sharded;
}

/* ---- properties common to all layouts ---- */

static void name_assumed(ch_plan *plan) {
  static const char *const parts[CH_FLOPS_PARTS] = {"attention", "dense layers", "routing", "experts", "head"};
  const ch_cluster *c = &plan->cluster;
  char *text = plan->assumed;
  size_t used = 0, size = sizeof plan->assumed;
  for (int p = 0; p < CH_FLOPS_PARTS && used < size; p++)
    if (c->assumed >> p & 1)
      used += (size_t)ch_format(text + used, size - used, "%s%s at %.2g", used ? ", " : "share of the peak: ", parts[p],
                                c->share[p]);
}

/* Refuses configs for which no layout is possible. */
static int check_plan(ch_plan *plan, int ranks) {
  ch_train_config *t = &plan->config.train;
  if (ranks > plan->cluster.ranks)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%d ranks: the cluster has %d", ranks, plan->cluster.ranks);
  plan->ranks = ranks = ranks ? ranks : plan->cluster.ranks;
  if (t->batch_sequences % ranks)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "train.batch_sequences is %d, which %d ranks cannot share evenly; set it to a multiple of %d",
                    t->batch_sequences, ranks, ranks);
  if (t->grad_chunks % ranks) {
    t->grad_chunks = ranks;
    plan->shards_set = 1;
  }
  if (ch_peak_of(&plan->config, &plan->cluster) <= 0)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "train.compute is bf16, and the cluster's ranks have none: set bf16_gflops in its file, or "
                    "train.compute to fp32");
  return choir_config_check(&plan->config);
}

static int fill_plan(ch_plan *plan, const choir_config *config, const ch_plan_options *options) {
  plan->config = *config;
  CH_TRY(ch_cluster_load(options->cluster, &plan->cluster));
  CH_TRY(check_plan(plan, options->ranks));
  if (!plan->config.model.vocab_size)
    return ch_error(CHOIR_ERROR_ARGUMENT, "model.vocab_size is 0: set it, a plan has no data to take it from");
  CH_TRY(ch_params_build(&plan->config.model, &plan->params));
  CH_TRY(choir_config_get_costs(&plan->config, &plan->costs));
  plan->tokens = ch_step_tokens(&plan->config.train);
  plan->peak = ch_peak_of(&plan->config, &plan->cluster);
  name_assumed(plan);
  CH_TRY(add_all(plan));
  qsort(plan->layout, (size_t)plan->count, sizeof *plan->layout, by_time);
  return CHOIR_OK;
}

int ch_plan_create(const choir_config *config, const ch_plan_options *options, ch_plan **plan) {
  CH_TRY(CH_ALLOC(plan, 1, "a plan"));
  int code = fill_plan(*plan, config, options);
  if (!code) return CHOIR_OK;
  ch_plan_free(*plan);
  *plan = NULL;
  return code;
}

void ch_plan_free(ch_plan *plan) {
  if (!plan) return;
  ch_params_free(&plan->params);
  free(plan->layout);
  free(plan);
}
