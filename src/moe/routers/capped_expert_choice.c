/* Expert choice where a token has at most b experts: every expert of a pool has k tokens, and the total score is
 * maximal (solver exact) or that of the paper's entropic solver (dykstra). The gate is the score. The dual prices of
 * the assignment are the experts' cut-offs. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "moe/assign/assign.h"
#include "moe/gates.h"
#include "moe/routers/pool.h"
#include "moe/routers/threshold.h"

static int cap_of(const ch_router_spec *o, int e) { return o->cap > 0 && o->cap < e ? o->cap : e; }

/* Checks full pools; in a smaller last pool, or with padding, k is reduced instead. */
static int check_capacity(const ch_router_spec *o, double c, int size, int e) {
  int64_t places = (int64_t)e * ch_router_k(c, size, e), capacity = (int64_t)cap_of(o, e) * size;
  if (places <= capacity) return CHOIR_OK;
  return ch_error(
      CHOIR_ERROR_ARGUMENT,
      "router '%s': %d experts that take %d of %d tokens each (capacity_factor %g) need %lld places, and a cap "
      "of %d leaves %lld; raise cap or lower capacity_factor",
      o->kind->name, e, ch_router_k(c, size, e), size, c, (long long)places, o->cap, (long long)capacity);
}

static int check_capped(const ch_router_spec *o, int n, int e, int sequence_length) {
  CH_TRY(ch_router_check_sizes(o, n, e));
  CH_TRY(ch_pools_check(o, n, e, sequence_length));
  if (o->solver_stages > o->solver_iterations)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': solver_stages is %d, and solver_iterations %d: a stage needs one", o->kind->name,
                    o->solver_stages, o->solver_iterations);
  int size = ch_pools_largest(o, n, sequence_length);
  CH_TRY(check_capacity(o, ch_router_factor(o, 1), size, e));
  return check_capacity(o, ch_router_factor(o, 0), size, e);
}

static int max_slots(const ch_router_spec *o, int n, int e, int sequence_length) {
  return (int)ch_pools_slots(o, ch_router_factor_max(o), n, e, sequence_length);
}

/* Reduces the pools' k to the capacity of their valid tokens. */
static void fit(const ch_route_args *a, const int *order, ch_pools *pools) {
  pools->total = 0;
  for (int p = 0; p < pools->count; p++) {
    int valid = 0;
    for (int j = pools->begin[p]; j < pools->begin[p + 1]; j++)
      valid += !a->tokens.mask || a->tokens.mask[order ? order[j] : j];
    pools->total += pools->k[p] = ch_assign_k(pools->k[p], valid, a->e, cap_of(a->options, a->e));
  }
}

static void route_capped(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  const ch_router_spec *o = a->options;
  ch_pools pools = ch_pools_cut(x, a);
  const int *order = ch_pools_order(x, a, &pools);
  size_t cells = (size_t)a->n * (size_t)a->e, prices = (size_t)pools.count * (size_t)a->e;
  real *beta = CH_NEW_HOST(&ch_host(x)->scratch, real, prices);
  uint8_t *assigned = CH_NEW_HOST(&ch_host(x)->scratch, uint8_t, cells);
  if (!ch_counting(x)) fit(a, order, &pools);
  ch_assign(ch_host(x), &(ch_assign_args){.n = a->n,
                                          .e = a->e,
                                          .pools = pools.count,
                                          .largest = ch_pools_largest(o, a->n, a->sequence_length),
                                          .pool_begin = pools.begin,
                                          .order = order,
                                          .k = pools.k,
                                          .cap = cap_of(o, a->e),
                                          .solver = o->solver,
                                          .lambda = o->solver_lambda,
                                          .iterations = o->solver_iterations,
                                          .stages = o->solver_stages,
                                          .valid = a->tokens.mask,
                                          .score = ch_download(x, a->routing->scores, cells * sizeof(real)),
                                          .assigned = assigned,
                                          .beta = beta,
                                          .certificate = &a->routing->counts.certificate});
  CH_OP(x, collect, .keep = ch_upload(&x->scratch, assigned, cells), .record = &a->routing->record);
  ch_pools_mean_cutoff(x, a, &pools, ch_upload(&x->scratch, beta, prices * sizeof *beta));
  ch_router_demand_is_load(x, a);
  ch_router_gates_from_scores(x, a);
  a->routing->record.load = a->routing->record.max = a->routing->counts.capacity = pools.total;
}

const ch_router ch_router_capped_expert_choice = {
    .name = "capped_expert_choice",
    .summary = "expert choice with at most `cap` experts per token, by an exact or an entropy-regularized solver",
    .reads = CHOIR_READS_SCORES,
    .depends_on = CHOIR_DEPENDS_ON_ALL,
    .gates = CHOIR_GATES_SCORE,
    .uniform_load = 1,
    .takes = {.capacity = 1,
              .pools = 1,
              .cap = 1,
              .solver = 1,
              .solver_lambda = 1,
              .solver_iterations = 1,
              .solver_stages = 1,
              .decay = 1},
    .defaults = {.capacity_factor = 2, .cap = 2},
    .check = check_capped,
    .max_slots = max_slots,
    .route = route_capped,
    .causal = ch_router_by_thresholds,
    .observe = ch_router_observe_cutoffs,
    .backward = ch_router_gates_backward,
};
