/* Global top-k: of all scores S [n,e] of the call the n c best are taken, best first (ties: lower token, then lower
 * expert), but for those whose expert holds its room already, twice its even share, or whose token has its cap. What is
 * refused makes room for the next best. The gate is the score. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "moe/routers/threshold.h"

/* One pair of token and expert. */
typedef struct pair {
  real score;
  int32_t at; /* t e + i */
} pair;

/* Pairs to take: n c, to the nearest whole number, and no more than the cap leaves. */
static int total_of(const choir_router_options *o, double c, int n, int e) {
  int total = ch_router_k(c / e, n * e, 1);
  return o->cap && (int64_t)total > (int64_t)n * o->cap ? n * o->cap : total;
}

static int check_factor(double c, int e) {
  if (c <= e) return CHOIR_OK;
  return ch_error(
      CHOIR_ERROR_ARGUMENT,
      "router 'global_topk': capacity_factor %g: a token has %d experts on average at most, as many as there "
      "are",
      c, e);
}

static int check_global_topk(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  CH_TRY(ch_router_check_sizes(o, n, e));
  CH_TRY(check_factor(o->capacity_factor, e));
  CH_TRY(check_factor(ch_router_factor(o, 0), e));
  if (n > INT32_MAX / e)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router 'global_topk': %d tokens and %d experts are too many for one call", n,
                    e);
  return CHOIR_OK;
}

static int max_slots(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  return total_of(o, fmax(o->capacity_factor, o->eval_capacity_factor), n, e);
}

/* ---- a heap: built in linear time, and only what is looked at is sorted ---- */

static int before(const pair *a, const pair *b) { return a->score != b->score ? a->score > b->score : a->at < b->at; }

/* Puts `p` into the hole at `hole` of a heap of `count`, or lower. */
static void sift_down(pair *heap, int count, int hole, pair p) {
  for (int64_t child; (child = 2 * (int64_t)hole + 1) < count; hole = (int)child) {
    if (child + 1 < count && before(&heap[child + 1], &heap[child])) child++;
    if (!before(&heap[child], &p)) break;
    heap[hole] = heap[child];
  }
  heap[hole] = p;
}

/* All pairs of valid tokens; NaN is worst. Returns how many. */
static int build_heap(const ch_route_args *a, pair *heap) {
  const real *scores = CH_AS_HOST(const real, a->scores);
  int count = 0;
  for (int32_t at = 0; at < a->n * a->e; at++) {
    if (a->mask && !a->mask[at / a->e]) continue;
    real score = scores[at];
    heap[count++] = (pair){score == score ? score : (real)-INFINITY, at};
  }
  for (int i = count / 2 - 1; i >= 0; i--) sift_down(heap, count, i, heap[i]);
  return count;
}

/* Marks what is taken and counts what was looked at; cutoff: where each expert stopped. */
static void take_best(const ch_route_args *a, pair *heap, int capacity, int total, int *held, int *had, uint8_t *keep) {
  int e = a->e, left = total;
  int *demand = CH_AS_HOST(int, a->counts->demand);
  real *cutoff = CH_AS_HOST(real, a->counts->cutoff), last = (real)INFINITY;
  int64_t dropped = 0;
  memset(held, 0, (size_t)e * sizeof *held);
  memset(had, 0, (size_t)a->n * sizeof *had);
  memset(keep, 0, (size_t)a->n * (size_t)e);
  memset(demand, 0, (size_t)e * sizeof *demand);
  for (int count = build_heap(a, heap); count && left;) {
    pair best = heap[0];
    count--;
    sift_down(heap, count, 0, heap[count]);
    int t = best.at / e, i = best.at % e;
    demand[i]++;
    if (held[i] == capacity || (a->options->cap && had[t] == a->options->cap)) {
      dropped++;
      continue;
    }
    keep[best.at] = 1;
    had[t]++;
    left--;
    last = cutoff[i] = best.score;
    held[i]++;
  }
  for (int i = 0; i < e; i++)
    if (held[i] < capacity || !capacity) cutoff[i] = last; /* not full: stopped by the budget that all experts share */
  *CH_AS_HOST(int64_t, a->counts->dropped) = dropped;
}

static void route_global_topk(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  int64_t count = (int64_t)a->n * a->e;
  pair *heap = CH_NEW_HOST(&x->scratch, pair, count);
  uint8_t *keep = CH_NEW_HOST(&x->scratch, uint8_t, count);
  int *held = CH_NEW_HOST(&x->scratch, int, a->e), *had = CH_NEW_HOST(&x->scratch, int, a->n);
  double c = ch_router_factor_planned(x, a);
  int valid = ch_valid_count(a->mask, a->n), capacity = ch_router_capacity(2 * c, 1, valid, a->e);
  if (!ch_counting(x)) take_best(a, heap, capacity, valid ? total_of(a->options, c, valid, a->e) : 0, held, had, keep);
  CH_OP(x, collect, .keep = CH_AS_DEV(const uint8_t, keep), .record = a->record);
  ch_router_gates_from_scores(x, a);
  a->counts->capacity = a->record->most = capacity;
}

const ch_router ch_router_global_topk = {
    .name = "global_topk",
    .summary = "the n c best of all scores, an expert at most twice its share",
    .reads = CH_READS_SCORES,
    .looks = CH_LOOKS_AROUND,
    .options = CH_ROUTER_TAKES(normalize_gates) | CH_ROUTER_TAKES(score) | CH_ROUTER_TAKES_CAPACITY |
               CH_ROUTER_TAKES(cap) | CH_ROUTER_TAKES(decay),
    .on_host = 1,
    .defaults = {CH_ROUTER_DEFAULTS("global_topk"), .capacity_factor = 2},
    .check = check_global_topk,
    .max_slots = max_slots,
    .route = route_global_topk,
    .causal = ch_router_by_thresholds,
    .observe = ch_router_observe_cutoffs,
    .backward = ch_router_gates_backward,
};
