#include "moe/routers/threshold_choice.h"

#include <string.h>

static int most_of(int k, int n) { return 2 * (int64_t)k < n ? 2 * k : n; }

static int least_of(int k) { return (k + 3) / 4; }

int64_t ch_threshold_choice_slots(const choir_router_options *o, int n, int e) {
  return (int64_t)e * most_of(ch_router_k(o->capacity_factor, n, e), n);
}

/* The k best tokens of every expert, and where they end. */
typedef struct {
  ch_record record;
  real *cutoff; /* [e] */
} best;

static best select_best(ch_exec *x, const ch_route_args *a, int most, int k) {
  best b;
  ch_record_alloc(&x->scratch, &b.record, a->n, a->e, a->e * most);
  b.cutoff = CH_NEW(&x->scratch, real, a->e);
  x->ops->select(x, &(ch_select_args){.pools = 1,
                                      .pool_begin = (int[]){0, a->n},
                                      .k = &k,
                                      .valid = a->valid,
                                      .score = a->scores,
                                      .record = &b.record,
                                      .cutoff = b.cutoff});
  return b;
}

/* Expert i's tokens into `to`, ascending: all of `few` where the threshold is above them, else those of `many` that
 * reach it. Returns how many. */
static int take(const ch_route_args *a, int i, const best *few, const best *many, int *to) {
  real threshold = a->thresholds[i];
  const best *from = threshold > few->cutoff[i] ? few : many;
  int count = 0;
  for (int s = from->record.expert_begin[i]; s < from->record.expert_begin[i + 1]; s++) {
    int t = from->record.slot_token[s];
    if (from == few || a->scores[(int64_t)t * a->e + i] >= threshold) to[count++] = t;
  }
  return count;
}

/* Tokens that reach the threshold, whether or not there is room. */
static int asking(const ch_route_args *a, int i) {
  int count = 0;
  for (int t = 0; t < a->n; t++)
    count += (!a->valid || a->valid[t]) && a->scores[(int64_t)t * a->e + i] >= a->thresholds[i];
  return count;
}

void ch_threshold_choice(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  int counting = ch_counting(x), valid = counting ? a->n : ch_valid_count(a->valid, a->n);
  int planned = ch_router_k(a->options->capacity_factor, a->n, a->e);
  int k = ch_router_k(a->options->capacity_factor, valid, a->e), most = most_of(planned, a->n);
  best few = select_best(x, a, most, least_of(k)), even = select_best(x, a, most, k),
       many = select_best(x, a, most, most_of(k, valid));
  int *list = CH_NEW(&x->scratch, int, (int64_t)a->e *most), *count = CH_NEW(&x->scratch, int, a->e);
  if (!counting) {
#pragma omp parallel for num_threads(x->threads)
    for (int i = 0; i < a->e; i++) {
      count[i] = take(a, i, &few, &many, list + (int64_t)i * most);
      a->counts->demand[i] = asking(a, i);
      a->counts->cutoff[i] = even.cutoff[i];
    }
    ch_record *r = a->record;
    a->counts->capacity = k;
    a->counts->dropped = 0;
    r->slots = 0;
    for (int i = 0; i < a->e; i++) {
      r->expert_begin[i] = r->slots;
      memcpy(r->slot_token + r->slots, list + (int64_t)i * most, (size_t)count[i] * sizeof *list);
      r->slots += count[i];
      if (a->counts->demand[i] > count[i]) a->counts->dropped += a->counts->demand[i] - count[i];
    }
    r->expert_begin[a->e] = r->slots;
  }
  ch_arena_release(&x->scratch, mark);
}
