/* Expert choice (Zhou et al. 2022): each expert takes the k = n c / e tokens of a pool that score best for it. The gate
 * is the score itself. Load is k, exactly; a token may be taken by any number of experts, or by none. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/suggest.h"
#include "moe/expert_choice.h"

const char *const ch_router_pools[] = {"batch", "sequence", NULL};

int ch_pool_size(const choir_router_options *o, int n, int sequence_length) {
  int by_sequence = !strcmp(o->pool, "sequence");
  return by_sequence && sequence_length > 0 && sequence_length < n ? sequence_length : n;
}

/* Slots of n tokens in pools of `size`, the last one smaller. */
static int64_t slots(double c, int n, int size, int e) {
  return (int64_t)e * ((int64_t)(n / size) * ch_router_k(c, size, e) + ch_router_k(c, n % size, e));
}

static int check_factor(const char *name, double c, int n, int size, int e) {
  if (c > e)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': capacity_factor %g with %d experts makes k = n c / e larger than the pool of %d "
                    "tokens; it can be "
                    "%d at most",
                    name, c, e, size, e);
  if (size * c / e < 0.5)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': k = n c / e is 0 (pool of %d tokens, capacity_factor %g, %d experts)", name, size, c,
                    e);
  if (slots(c, n, size, e) > INT32_MAX / 2)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d tokens are too many for one call", name, n);
  return CHOIR_OK;
}

int ch_expert_choice_check(const choir_router_options *o, int n, int e, int sequence_length) {
  CH_TRY(ch_router_check_sizes(o, n, e));
  char nearest[128];
  if (strcmp(o->pool, ch_router_pools[0]) && strcmp(o->pool, ch_router_pools[1]))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': pool '%s' is neither batch nor sequence%s", o->name, o->pool,
                    ch_did_you_mean(nearest, sizeof nearest, o->pool, ch_router_pools));
  int size = ch_pool_size(o, n, sequence_length);
  if (e > size)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d experts choose among only %d tokens (pool '%s')", o->name, e,
                    size, o->pool);
  CH_TRY(check_factor(o->name, o->capacity_factor, n, size, e));
  return check_factor(o->name, ch_router_factor(o, 0), n, size, e);
}

int ch_expert_choice_max_slots(const choir_router_options *o, int n, int e, int sequence_length) {
  int size = ch_pool_size(o, n, sequence_length);
  return (int)slots(fmax(o->capacity_factor, o->eval_capacity_factor), n, size, e);
}

int ch_expert_choice_cut(const ch_route_args *a, int size, int count, int *begin, int *k) {
  double c = ch_router_factor(a->options, a->training);
  int total = 0;
  for (int p = 0; p < count; p++) {
    begin[p] = p * size;
    begin[p + 1] = p + 1 < count ? begin[p] + size : a->n;
    int valid = ch_valid_count(a->valid ? a->valid + begin[p] : NULL, begin[p + 1] - begin[p]);
    total += k[p] = ch_router_k(c, valid, a->e);
  }
  return total;
}

/* Over the pools in which the expert took any token; +infinity where there is none. */
static void mean_cutoff(const ch_route_args *a, int pools, const real *cutoff) {
  for (int i = 0; i < a->e; i++) {
    double sum = 0;
    int finite = 0;
    for (int p = 0; p < pools; p++) {
      real value = cutoff[(int64_t)p * a->e + i];
      if (!isfinite(value)) continue;
      sum += (double)value;
      finite++;
    }
    a->counts->cutoff[i] = finite ? (real)(sum / finite) : (real)INFINITY;
  }
}

void ch_expert_choice_finish(ch_exec *x, const ch_route_args *a, int capacity, int pools, const real *cutoff) {
  const ch_record *r = a->record;
  a->counts->capacity = capacity;
  a->counts->dropped = 0;
  a->counts->aux_loss = 0;
  mean_cutoff(a, pools, cutoff);
#pragma omp parallel for num_threads(x->threads)
  for (int i = 0; i < a->e; i++) {
    a->counts->demand[i] = r->expert_begin[i + 1] - r->expert_begin[i];
    for (int s = r->expert_begin[i]; s < r->expert_begin[i + 1]; s++)
      r->slot_gate[s] = a->scores[(int64_t)r->slot_token[s] * a->e + i];
  }
}

static void route(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  int size = ch_pool_size(a->options, a->n, a->sequence_length), count = (a->n + size - 1) / size;
  int *begin = CH_NEW(&x->scratch, int, count + 1), *k = CH_NEW(&x->scratch, int, count);
  real *cutoff = CH_NEW(&x->scratch, real, (int64_t)count * a->e);
  int total = ch_counting(x) ? 0 : ch_expert_choice_cut(a, size, count, begin, k);

  ch_record *r = a->record;
  x->ops->select(x, &(ch_select_args){.pools = count,
                                      .pool_begin = begin,
                                      .k = k,
                                      .valid = a->valid,
                                      .score = a->scores,
                                      .record = r,
                                      .cutoff = cutoff});
  if (!ch_counting(x)) {
    r->slots = r->expert_begin[a->e];
    ch_expert_choice_finish(x, a, total, count, cutoff);
  }
  ch_arena_release(&x->scratch, mark);
}

const ch_router ch_router_expert_choice = {
    .name = "expert_choice",
    .caps = CH_ROUTER_ACROSS_TOKENS | CH_ROUTER_LEARNED | CH_ROUTER_THRESHOLDS | CH_ROUTER_POOLS,
    .defaults = {CH_ROUTER_DEFAULTS("expert_choice"), .capacity_factor = 2},
    .check = ch_expert_choice_check,
    .max_slots = ch_expert_choice_max_slots,
    .route = route,
    .causal = ch_router_by_thresholds,
    .observe = ch_router_observe_cutoffs,
    .backward = ch_router_gates_backward,
};
