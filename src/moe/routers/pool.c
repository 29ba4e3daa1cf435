#include "moe/routers/pool.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"

const char *const ch_router_pools[] = {"batch", "sequence", "position", "group", NULL};

/* n tokens make `large` pools of size + 1 tokens (which come first), `count` - large of size, and a last one of `rest`.
 */
typedef struct {
  int count, size, large, rest, stride;
} shape;

static shape runs(int n, int size) { return (shape){.count = n / size, .size = size, .rest = n % size, .stride = 1}; }

static shape shape_of(const choir_router_options *o, int n, int sequence_length) {
  int T = sequence_length > 0 && sequence_length < n ? sequence_length : n;
  if (!strcmp(o->pool, "sequence")) return runs(n, T);
  if (!strcmp(o->pool, "group")) return runs(n, o->group_size < n ? o->group_size : n);
  if (!strcmp(o->pool, "position")) return (shape){.count = T, .size = n / T, .large = n % T, .stride = T};
  return runs(n, n);
}

static int64_t slots_of(const shape *s, double c, int e) {
  return (int64_t)e * ((int64_t)s->large * ch_router_k(c, s->size + 1, e) +
                       (int64_t)(s->count - s->large) * ch_router_k(c, s->size, e) + ch_router_k(c, s->rest, e));
}

int64_t ch_pools_slots(const choir_router_options *o, double c, int n, int e, int sequence_length) {
  c = ch_router_scheduled_most(o, c);
  shape s = shape_of(o, n, sequence_length);
  return slots_of(&s, c, e);
}

static int check_factor(const choir_router_options *o, const shape *s, double c, int n, int e) {
  c = ch_router_scheduled_most(o, c);
  if (c > e)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': capacity_factor %g with %d experts makes k = n c / e larger than the pool of "
                    "%d tokens; it can be %d at most",
                    o->name, c, e, s->size, e);
  if (s->size * c / e < 0.5)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': k = n c / e is 0 (pool of %d tokens, capacity_factor %g, %d experts)", o->name,
                    s->size, c, e);
  if (slots_of(s, c, e) > INT32_MAX / 2)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d tokens are too many for one call", o->name, n);
  return CHOIR_OK;
}

static int check_name(const choir_router_options *o) {
  char nearest[128], list[128];
  for (int i = 0; ch_router_pools[i]; i++)
    if (!strcmp(o->pool, ch_router_pools[i])) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': there is no pool '%s'%s (pools: %s)", o->name, o->pool,
                  ch_did_you_mean(nearest, sizeof nearest, o->pool, ch_router_pools),
                  ch_word_list(list, sizeof list, ch_router_pools));
}

int ch_pools_check(const choir_router_options *o, int n, int e, int sequence_length) {
  CH_TRY(check_name(o));
  if (o->group_size < 1 && !strcmp(o->pool, "group"))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': group_size is %d; pool 'group' needs at least 1", o->name,
                    o->group_size);
  if (sequence_length < 1 && !strcmp(o->pool, "position"))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': pool 'position' needs sequence_length, the number of tokens of one sequence",
                    o->name);
  shape s = shape_of(o, n, sequence_length);
  if (e > s.size)
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "router '%s': %d experts choose among only %d tokens (pool '%s'%s); give more tokens, or use a trained "
        "model with routing threshold (--routing threshold), which takes any number",
        o->name, e, s.size, o->pool, !strcmp(o->pool, "position") ? ": one of each sequence" : "");
  CH_TRY(check_factor(o, &s, o->capacity_factor, n, e));
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
    double own = a->tokens.masked && valid ? ch_router_scheduled(a->options, c, (double)masked / valid) : c;
    pools.total += pools.k[p] = ch_router_k(own, valid, ch_route_experts(a));
  }
  return pools;
}

int ch_pools_count(const choir_router_options *o, int n, int sequence_length) {
  shape s = shape_of(o, n, sequence_length);
  return s.count + (s.rest > 0);
}

int ch_pools_largest(const choir_router_options *o, int n, int sequence_length) {
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
