/* Expert choice (Zhou et al. 2022): each expert has the k = n c / e tokens of a pool with its highest scores. The gate
 * is the score. Every load is exactly k; a token may have any number of experts, or none. */
#include <math.h>

#include "base/error.h"
#include "moe/gates.h"
#include "moe/routers/pool.h"
#include "moe/routers/threshold.h"

static int check_expert_choice(const ch_router_spec *o, int n, int e, int sequence_length) {
  CH_TRY(ch_router_check_sizes(o, n, e));
  return ch_pools_check(o, n, e, sequence_length);
}

static int max_slots(const ch_router_spec *o, int n, int e, int sequence_length) {
  int64_t own = ch_pools_slots(o, ch_router_factor_max(o), n, e, sequence_length);
  int64_t near = o->threshold_after ? ch_threshold_choice_slots(o, n, e) : 0;
  return (int)(own > near ? own : near);
}

/* Each expert's k best tokens of every pool. */
static void choose(ch_exec *x, const ch_route_args *a) {
  ch_pools pools = ch_pools_cut(x, a);
  real CH_DEV *cutoff = CH_NEW(&x->scratch, real, (int64_t)pools.count * a->e);
  ch_pools_select(x, a, &pools, cutoff);
  ch_pools_mean_cutoff(x, a, &pools, cutoff);
  ch_router_demand_is_load(x, a);
  a->routing->record.load = a->routing->record.max = a->routing->counts.capacity = pools.total;
}

/* One plan serves batch and threshold routing. */
static void route_expert_choice(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  if (!a->by_threshold || ch_counting(x)) choose(x, a);
  if (a->options->threshold_after && (a->by_threshold || ch_counting(x))) ch_threshold_choice(x, a);
  ch_router_gates_from_scores(x, a);
}

const ch_router ch_router_expert_choice = {
    .name = "expert_choice",
    .summary = "each expert selects the k = n * c / e tokens of a pool with its highest scores (Zhou et al. 2022)",
    .reads = CHOIR_READS_SCORES,
    .depends_on = CHOIR_DEPENDS_ON_ALL,
    .gates = CHOIR_GATES_SCORE,
    .uniform_load = 1,
    .per_expert = 1,
    .takes = {.capacity = 1, .pools = 1, .capacity_schedule = 1, .decay = 1, .threshold_after = 1},
    .defaults = {.capacity_factor = 2},
    .check = check_expert_choice,
    .max_slots = max_slots,
    .route = route_expert_choice,
    .causal = ch_router_by_thresholds,
    .observe = ch_router_observe_cutoffs,
    .backward = ch_router_gates_backward,
};
