#include "moe/routers/threshold_choice.h"

static int most_of(int k, int n) { return 2 * (int64_t)k < n ? 2 * k : n; }

static int least_of(int k) { return (k + 3) / 4; }

int64_t ch_threshold_choice_slots(const choir_router_options *o, int n, int e) {
  return (int64_t)e * most_of(ch_router_k(o->capacity_factor, n, e), n);
}

/* The k best tokens of every expert, of `most` that there is room for, and where they end. */
typedef struct {
  ch_record record;
  real CH_DEV *cutoff; /* [e] */
} best;

static best select_best(ch_exec *x, const ch_route_args *a, int most, int k, real CH_DEV *cutoff) {
  best b = {.cutoff = cutoff};
  ch_record_alloc(&x->scratch, &b.record, a->n, a->e, a->e * most);
  x->ops->select(x, &(ch_select_args){.pools = 1,
                                      .pool_begin = (int[]){0, a->n},
                                      .k = &k,
                                      .valid = a->valid,
                                      .score = a->scores,
                                      .record = &b.record,
                                      .cutoff = cutoff});
  return b;
}

void ch_threshold_choice(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  int valid = ch_valid_count(a->mask, a->n), e = ch_route_experts(a);
  int planned = ch_router_k(a->options->capacity_factor, a->n, e);
  int k = ch_router_k(a->options->capacity_factor, valid, e), most = most_of(planned, a->n);
  best few = select_best(x, a, most, least_of(k), CH_NEW(&x->scratch, real, a->e)),
       many = select_best(x, a, most, most_of(k, valid), NULL);
  select_best(x, a, most, k, a->counts->cutoff); /* what thresholds follow */
  x->ops->within(x, &(ch_within_args){.least = &few.record,
                                      .most = &many.record,
                                      .least_cutoff = few.cutoff,
                                      .valid = a->valid,
                                      .score = a->scores,
                                      .threshold = a->thresholds,
                                      .record = a->record,
                                      .demand = a->counts->demand,
                                      .dropped = a->counts->dropped});
  a->counts->capacity = k;
  ch_arena_release(&x->scratch, mark);
}
