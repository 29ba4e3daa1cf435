/* Causal routing by thresholds: the multiplier of "expert i takes k tokens" is the expert's cut-off score, so a running
 * mean of cut-offs lets an expert decide about a token without a look at any other. */
#include <math.h>

#include "moe/router.h"

double ch_router_mean_weight(double decay, uint64_t observed) {
  return decay > 0 ? (1 - decay) / -expm1((double)(observed + 1) * log(decay)) : 1;
}

void ch_router_observe_cutoffs(ch_exec *x, const ch_route_args *a) {
  x->ops->running_mean(x, &(ch_running_mean_args){.count = a->e,
                                                  .fresh = !a->observed,
                                                  .weight = ch_router_mean_weight(a->options->decay, a->observed),
                                                  .value = a->counts->cutoff,
                                                  .mean = a->state});
}

void ch_router_by_thresholds(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  uint8_t CH_DEV *keep = CH_NEW(&x->scratch, uint8_t, (int64_t)a->n * a->e);
  x->ops->threshold(x, &(ch_threshold_args){.n = a->n,
                                            .e = a->e,
                                            .cap = a->options->cap,
                                            .valid = a->valid,
                                            .score = a->scores,
                                            .threshold = a->thresholds,
                                            .keep = keep});
  x->ops->collect(x, &(ch_collect_args){.keep = keep, .record = a->record});
  ch_router_gates_from_scores(x, a);
  ch_router_demand_is_load(x, a);
  a->counts->capacity = ch_valid_count(a->mask, a->n);
  ch_arena_release(&x->scratch, mark);
}

int ch_thresholds_set(const real *thresholds, int e) {
  for (int i = 0; i < e; i++)
    if (thresholds[i] != 0) return 1;
  return 0;
}
