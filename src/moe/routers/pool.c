#include "moe/routers/pool.h"

#include "base/error.h"

/* The pools of n tokens: first `large` pools of size + 1 tokens, then count - large pools of `size`, then one of
 * `rest`. */
typedef struct {
  int count, size, large, rest, stride;
} shape;

static shape runs(int n, int size) { return (shape){.count = n / size, .size = size, .rest = n % size, .stride = 1}; }

static shape shape_of(const ch_router_spec *o, int n, int sequence_length) {
  int T = sequence_length > 0 && sequence_length < n ? sequence_length : n;
  if (o->pool == CH_POOL_SEQUENCE) return runs(n, T);
  if (o->pool == CH_POOL_GROUP) return runs(n, o->group_size < n ? o->group_size : n);
  if (o->pool == CH_POOL_POSITION) return (shape){.count = T, .size = n / T, .large = n % T, .stride = T};
  return runs(n, n);
}

static int64_t slots_of(const shape *s, double c, int e) {
  return (int64_t)e * ((int64_t)s->large * ch_router_k(c, s->size + 1, e) +
                       (int64_t)(s->count - s->large) * ch_router_k(c, s->size, e) + ch_router_k(c, s->rest, e));
}

int64_t ch_pools_slots(const ch_router_spec *o, double c, int n, int e, int sequence_length) {
  c = ch_router_scheduled_max(o, c);
  shape s = shape_of(o, n, sequence_length);
  return slots_of(&s, c, e);
}

static int check_factor(const ch_router_spec *o, const shape *s, double c, int n, int e) {
  c = ch_router_scheduled_max(o, c);
  if (c > e)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': capacity_factor %g with %d experts makes k = n c / e larger than the pool of "
                    "%d tokens; it can be %d at most",
                    o->kind->name, c, e, s->size, e);
  if (s->size * c / e < 0.5)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': k = n c / e is 0 (pool of %d tokens, capacity_factor %g, %d experts)", o->kind->name,
                    s->size, c, e);
  if (slots_of(s, c, e) > INT32_MAX / 2)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d tokens are too many for one call", o->kind->name, n);
  return CHOIR_OK;
}

int ch_pools_check(const ch_router_spec *o, int n, int e, int sequence_length) {
  if (o->group_size < 1 && o->pool == CH_POOL_GROUP)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': group_size is %d; pool 'group' needs at least 1", o->kind->name,
                    o->group_size);
  if (sequence_length < 1 && o->pool == CH_POOL_POSITION)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': pool 'position' needs sequence_length, the number of tokens of one sequence",
                    o->kind->name);
  shape s = shape_of(o, n, sequence_length);
  if (e > s.size)
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "router '%s': %d experts choose among only %d tokens (pool '%s'%s); give more tokens, or use a trained "
        "model with routing threshold (--routing threshold), which takes any number",
        o->kind->name, e, s.size, ch_router_pools[o->pool],
        o->pool == CH_POOL_POSITION ? ": one of each sequence" : "");
  CH_TRY(check_factor(o, &s, ch_router_factor(o, 1), n, e));
  return check_factor(o, &s, ch_router_factor(o, 0), n, e);
}

ch_pools ch_pools_cut(ch_exec *x, const ch_route_args *a) {
  shape s = shape_of(a->options, a->n, a->sequence_length);
  ch_pools pools = {.count = s.count + (s.rest > 0), .stride = s.stride};
  pools.begin = CH_NEW_HOST(&ch_host(x)->scratch, int, pools.count + 1);
  pools.k = CH_NEW_HOST(&ch_host(x)->scratch, int, pools.count);
  if (ch_counting(x)) return pools;
  double c = ch_router_factor(a->options, a->training);
  pools.begin[0] = 0;
  for (int p = 0; p < pools.count; p++) {
    int size = p == s.count ? s.rest : s.size + (p < s.large), valid = 0, masked = 0;
    pools.begin[p + 1] = pools.begin[p] + size;
    for (int j = 0; j < size; j++) {
      int t = ch_pools_token(&pools, p, j);
      valid += !a->tokens.mask || a->tokens.mask[t];
      masked += a->tokens.masked && a->tokens.masked[t];
    }
    double factor = a->tokens.masked && valid ? ch_router_scheduled(a->options, c, (double)masked / valid) : c;
    pools.total += pools.k[p] = ch_router_k(factor, valid, ch_route_experts(a));
  }
  return pools;
}

int ch_pools_count(const ch_router_spec *o, int n, int sequence_length) {
  shape s = shape_of(o, n, sequence_length);
  return s.count + (s.rest > 0);
}

int ch_pools_largest(const ch_router_spec *o, int n, int sequence_length) {
  shape s = shape_of(o, n, sequence_length);
  return s.size + (s.large > 0);
}

const int *ch_pools_order(ch_exec *x, const ch_route_args *a, const ch_pools *pools) {
  if (pools->stride == 1) return NULL;
  int *order = CH_NEW_HOST(&ch_host(x)->scratch, int, a->n);
  for (int p = 0; p < pools->count && !ch_counting(x); p++)
    for (int j = pools->begin[p]; j < pools->begin[p + 1]; j++)
      order[j] = ch_pools_token(pools, p, j - pools->begin[p]);
  return order;
}

void ch_pools_select(ch_exec *x, const ch_route_args *a, const ch_pools *pools, real CH_DEV *cutoff) {
  CH_OP(x, select, .pools = pools->count, .pool_begin = pools->begin, .k = pools->k, .stride = pools->stride,
        .valid = a->tokens.valid, .score = a->routing->scores, .record = &a->routing->record, .cutoff = cutoff);
}

void ch_select_best(ch_exec *x, const ch_route_args *a, const real CH_DEV *score, int k, const ch_record *record,
                    real CH_DEV *cutoff) {
  CH_OP(x, select, .pools = 1, .pool_begin = (int[]){0, a->n}, .k = &k, .valid = a->tokens.valid, .score = score,
        .record = record, .cutoff = cutoff);
}

void ch_pools_mean_cutoff(ch_exec *x, const ch_route_args *a, const ch_pools *pools, const real CH_DEV *cutoff) {
  CH_OP(x, mean_cutoff, .pools = pools->count, .e = a->e, .cutoff = cutoff, .mean = a->routing->counts.cutoff);
}
