/* Expert choice where a token has at most b experts: of all ways to give every expert of a pool its k tokens under that
 * cap, the one of largest total score (solver exact), or what the paper's entropic solver finds (dykstra). The gate is
 * the score. Prices of the assignment are the experts' cut-offs. */
#include <string.h>

#include "base/error.h"
#include "moe/assign.h"
#include "moe/expert_choice.h"

static int cap_of(const choir_router_options *o, int e) { return o->cap > 0 && o->cap < e ? o->cap : e; }

/* Full pools; of a smaller last one, or with padding, k goes down instead. */
static int check_room(const choir_router_options *o, double c, int size, int e) {
  int64_t places = (int64_t)e * ch_router_k(c, size, e), room = (int64_t)cap_of(o, e) * size;
  if (places <= room) return CHOIR_OK;
  return ch_error(
      CHOIR_ERROR_ARGUMENT,
      "router '%s': %d experts that take %d of %d tokens each (capacity_factor %g) need %lld places, and a cap "
      "of %d leaves %lld; raise cap or lower capacity_factor",
      o->name, e, ch_router_k(c, size, e), size, c, (long long)places, o->cap, (long long)room);
}

static int check(const choir_router_options *o, int n, int e, int sequence_length) {
  CH_TRY(ch_expert_choice_check(o, n, e, sequence_length));
  if (o->cap < 0) return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': cap %d must not be negative", o->name, o->cap);
  if (strcmp(o->solver, ch_router_solvers[CH_SOLVER_EXACT]) && strcmp(o->solver, ch_router_solvers[CH_SOLVER_DYKSTRA]))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': solver '%s' is neither exact nor dykstra", o->name, o->solver);
  if (!(o->solver_lambda > 0))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': solver_lambda %g must be above 0", o->name, o->solver_lambda);
  if (o->solver_iterations < 1)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': solver_iterations %d must be at least 1", o->name,
                    o->solver_iterations);
  int size = ch_pool_size(o, n, sequence_length);
  CH_TRY(check_room(o, o->capacity_factor, size, e));
  return check_room(o, ch_router_factor(o, 0), size, e);
}

/* Lowers the pools' k to what their valid tokens have room for; returns the k of all together. */
static int fit(const ch_route_args *a, int pools, const int *begin, int *k) {
  int total = 0;
  for (int p = 0; p < pools; p++) {
    int valid = ch_valid_count(a->valid ? a->valid + begin[p] : NULL, begin[p + 1] - begin[p]);
    total += k[p] = ch_assign_k(k[p], valid, a->e, cap_of(a->options, a->e));
  }
  return total;
}

static void route(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  const choir_router_options *o = a->options;
  int size = ch_pool_size(o, a->n, a->sequence_length), count = (a->n + size - 1) / size, total = 0;
  int *begin = CH_NEW(&x->scratch, int, count + 1), *k = CH_NEW(&x->scratch, int, count);
  real *beta = CH_NEW(&x->scratch, real, (int64_t)count * a->e);
  if (!ch_counting(x)) {
    ch_expert_choice_cut(a, size, count, begin, k);
    total = fit(a, count, begin, k);
  }
  ch_assign(x, &(ch_assign_args){.n = a->n,
                                 .e = a->e,
                                 .pools = count,
                                 .largest = size,
                                 .pool_begin = begin,
                                 .k = k,
                                 .cap = cap_of(o, a->e),
                                 .solver = strcmp(o->solver, ch_router_solvers[CH_SOLVER_DYKSTRA]) ? CH_SOLVER_EXACT
                                                                                                   : CH_SOLVER_DYKSTRA,
                                 .lambda = o->solver_lambda,
                                 .iterations = o->solver_iterations,
                                 .valid = a->valid,
                                 .score = a->scores,
                                 .record = a->record,
                                 .beta = beta,
                                 .certificate = &a->counts->certificate});
  if (!ch_counting(x)) ch_expert_choice_finish(x, a, total, count, beta);
  ch_arena_release(&x->scratch, mark);
}

const ch_router ch_router_capped_expert_choice = {
    .name = "capped_expert_choice",
    .caps = CH_ROUTER_ACROSS_TOKENS | CH_ROUTER_LEARNED | CH_ROUTER_THRESHOLDS | CH_ROUTER_POOLS,
    .defaults = {CH_ROUTER_DEFAULTS("capped_expert_choice"), .capacity_factor = 2, .cap = 2},
    .check = check,
    .max_slots = ch_expert_choice_max_slots,
    .route = route,
    .causal = ch_router_by_thresholds,
    .observe = ch_router_observe_cutoffs,
    .backward = ch_router_gates_backward,
};
