#include "moe/routers/threshold.h"

#include <math.h>

#include "moe/gates.h"
#include "moe/routers/pool.h"

double ch_router_mean_weight(double decay, uint64_t observed) {
  return decay > 0 ? (1 - decay) / -expm1((double)(observed + 1) * log(decay)) : 1;
}

void ch_router_observe_cutoffs(ch_exec *x, const ch_route_args *a) {
  CH_OP(x, running_mean, .count = a->e, .fresh = !a->router_state.observed,
        .weight = ch_router_mean_weight(a->options->decay, a->router_state.observed),
        .value = a->routing->counts.cutoff, .mean = a->router_state.updated);
}

void ch_router_by_thresholds(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  uint8_t CH_DEV *keep = CH_NEW(&x->scratch, uint8_t, (int64_t)a->n * a->e);
  const real CH_DEV *ranking = a->routing->scores;
  if (a->router->ranking) ranking = a->router->ranking(x, a);
  CH_OP(x, threshold, .n = a->n, .e = a->e, .cap = a->options->cap, .valid = a->tokens.valid, .score = ranking,
        .threshold = a->router_state.thresholds, .keep = keep);
  CH_OP(x, collect, .keep = keep, .record = &a->routing->record);
  ch_router_gates_from_scores(x, a);
  ch_router_demand_is_load(x, a);
  a->routing->counts.capacity = ch_valid_count(a->tokens.mask, a->n);
}

int ch_thresholds_set(const real *thresholds, int e) {
  for (int i = 0; i < e; i++)
    if (thresholds[i] != 0) return 1;
  return 0;
}

/* ---- in training */

static int max_slots_of(int k, int n) { return 2 * (int64_t)k < n ? 2 * k : n; }

int64_t ch_threshold_choice_slots(const ch_router_spec *o, int n, int e) {
  return (int64_t)e * max_slots_of(ch_router_k(ch_router_factor(o, 1), n, e), n);
}

void ch_threshold_choice(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  int valid = ch_valid_count(a->tokens.mask, a->n), e = ch_route_experts(a);
  int k = ch_router_k(ch_router_factor(a->options, 1), valid, e);
  int max_slots = a->e * max_slots_of(ch_router_k(ch_router_factor(a->options, 1), a->n, e), a->n);
  ch_record smallest, largest;
  real CH_DEV *smallest_cutoff = CH_NEW(&x->scratch, real, a->e);
  ch_record_alloc(&x->scratch, &smallest, a->n, a->e, max_slots);
  ch_record_alloc(&x->scratch, &largest, a->n, a->e, max_slots);
  ch_select_best(x, a, a->routing->scores, k, &smallest,
                 a->routing->counts.cutoff); /* the cut-offs that update thresholds */
  ch_select_best(x, a, a->routing->scores, (k + 3) / 4, &smallest, smallest_cutoff);
  ch_select_best(x, a, a->routing->scores, max_slots_of(k, valid), &largest, NULL);
  CH_OP(x, within, .min = &smallest, .max = &largest, .min_cutoff = smallest_cutoff, .valid = a->tokens.valid,
        .score = a->routing->scores, .threshold = a->router_state.thresholds, .record = &a->routing->record,
        .demand = a->routing->counts.demand, .dropped = a->routing->counts.dropped);
  a->routing->counts.capacity = k;
  a->routing->record.max = max_slots_of(k, valid);
}
