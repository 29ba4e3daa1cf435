/* Global top-k: assigns the n c pairs of highest score S [n,e] in a pool, in descending order (ties: lower token, then
 * lower expert). Pairs whose expert has reached its capacity, twice the even load, or whose token has reached its cap,
 * are skipped; the next pairs replace them. The gate is the score. With pool "sequence" a sequence shares its budget
 * among its tokens (SeqTopK, 2511.06494); with "batch" all do (Expert Race, 2503.16057). */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "moe/gates.h"
#include "moe/routers/pool.h"
#include "moe/routers/threshold.h"

/* One pair of token and expert. */
typedef struct pair {
  real score;
  int32_t at; /* t e + i */
} pair;

/* Number of pairs: n c, rounded to nearest, at most n times the cap. */
static int total_of(const ch_router_spec *o, double c, int n, int e) {
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

static int check_global_topk(const ch_router_spec *o, int n, int e, int sequence_length) {
  CH_TRY(ch_router_check_sizes(o, n, e));
  if (o->pool != CH_POOL_BATCH) CH_TRY(ch_pools_check(o, n, e, sequence_length));
  CH_TRY(check_factor(ch_router_factor(o, 1), e));
  CH_TRY(check_factor(ch_router_factor(o, 0), e));
  if (n > INT32_MAX / e)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router 'global_topk': %d tokens and %d experts are too many for one call", n,
                    e);
  return CHOIR_OK;
}

static int max_slots(const ch_router_spec *o, int n, int e, int sequence_length) {
  int pools = ch_pools_count(o, n, sequence_length); /* each pool rounds separately, and has at least one pair */
  int64_t total = (int64_t)total_of(o, ch_router_factor_max(o), n, e) + (pools > 1 ? pools : 0);
  return (int)(total < (int64_t)n * e ? total : n * e);
}

/* ---- a heap: built in linear time; only the visited pairs are sorted ---- */

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

/* Builds a heap of all pairs of the valid tokens of a pool; NaN is last. Returns their number. */
static int build_heap(const ch_route_args *a, const real *scores, const ch_pools *pools, int p, pair *heap) {
  int count = 0;
  for (int j = 0; j < pools->begin[p + 1] - pools->begin[p]; j++) {
    int t = ch_pools_token(pools, p, j);
    if (a->tokens.mask && !a->tokens.mask[t]) continue;
    for (int32_t at = t * a->e; at < (t + 1) * a->e; at++)
      heap[count++] = (pair){scores[at] == scores[at] ? scores[at] : (real)-INFINITY, at};
  }
  for (int i = count / 2 - 1; i >= 0; i--) sift_down(heap, count, i, heap[i]);
  return count;
}

/* What a routing works on. */
typedef struct {
  const real *scores; /* [n,e] */
  pair *heap;         /* [n e] */
  int *held, *had;    /* [e] of the pool, [n] */
  uint8_t *keep;      /* [n,e] assigned pairs */
  real *cutoff;       /* [pools,e] last score of each expert; +infinity: none */
  int *demand;        /* [e] */
  int64_t *dropped;   /* [1] */
} pair_work;

/* Marks the assigned pairs of a pool, at most `total`, and counts the visited pairs in demand. Returns the number of
 * skipped pairs. */
static int64_t take_best(const ch_route_args *a, const ch_pools *pools, int p, int capacity, int total,
                         const pair_work *w) {
  int e = a->e, left = total, *held = w->held, *had = w->had;
  real *cutoff = w->cutoff + (int64_t)p * e, last = (real)INFINITY;
  pair *heap = w->heap;
  int64_t dropped = 0;
  memset(held, 0, (size_t)e * sizeof *held);
  for (int count = build_heap(a, w->scores, pools, p, heap); count && left;) {
    pair best = heap[0];
    count--;
    sift_down(heap, count, 0, heap[count]);
    int t = best.at / e, i = best.at % e;
    w->demand[i]++;
    if (held[i] == capacity || (a->options->cap && had[t] == a->options->cap)) {
      dropped++;
      continue;
    }
    w->keep[best.at] = 1;
    had[t]++;
    left--;
    last = cutoff[i] = best.score;
    held[i]++;
  }
  for (int i = 0; i < e; i++)
    if (held[i] < capacity || !capacity) cutoff[i] = last; /* not full: limited by the total number of pairs */
  return dropped;
}

/* Processes every pool; returns the capacity of an expert summed over pools. */
static int take_all(const ch_route_args *a, const ch_pools *pools, double c, const pair_work *w) {
  int total_capacity = 0;
  memset(w->had, 0, (size_t)a->n * sizeof *w->had);
  memset(w->keep, 0, (size_t)a->n * (size_t)a->e);
  memset(w->demand, 0, (size_t)a->e * sizeof *w->demand);
  *w->dropped = 0;
  for (int p = 0; p < pools->count; p++) {
    int valid = 0, size = pools->begin[p + 1] - pools->begin[p];
    for (int j = 0; j < size; j++) valid += !a->tokens.mask || a->tokens.mask[ch_pools_token(pools, p, j)];
    int capacity = ch_router_capacity(2 * c, 1, valid, a->e);
    *w->dropped += take_best(a, pools, p, capacity, valid ? total_of(a->options, c, valid, a->e) : 0, w);
    total_capacity += capacity;
  }
  return total_capacity;
}

static void route_global_topk(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  ch_arena *host = &ch_host(x)->scratch;
  ch_route_counts *counts = &a->routing->counts;
  const ch_pools pools = ch_pools_cut(x, a);
  const size_t e = (size_t)a->e, cells = (size_t)a->n * e, cutoffs = (size_t)pools.count * e;
  const pair_work w = {.scores = ch_download(x, a->routing->scores, cells * sizeof(real)),
                       .heap = CH_NEW_HOST(host, pair, cells),
                       .held = CH_NEW_HOST(host, int, e),
                       .had = CH_NEW_HOST(host, int, a->n),
                       .keep = CH_NEW_HOST(host, uint8_t, cells),
                       .cutoff = CH_NEW_HOST(host, real, cutoffs),
                       .demand = CH_NEW_HOST(host, int, e),
                       .dropped = CH_NEW_HOST(host, int64_t, 1)};
  int total_capacity = ch_counting(x) ? a->n : take_all(a, &pools, ch_router_factor(a->options, a->training), &w);
  ch_write(x, counts->demand, w.demand, e * sizeof *w.demand);
  ch_write(x, counts->dropped, w.dropped, sizeof *w.dropped);
  CH_OP(x, collect, .keep = ch_upload(&x->scratch, w.keep, cells), .record = &a->routing->record);
  ch_router_gates_from_scores(x, a);
  ch_pools_mean_cutoff(x, a, &pools, ch_upload(&x->scratch, w.cutoff, cutoffs * sizeof *w.cutoff));
  counts->capacity = a->routing->record.max = total_capacity;
}

const ch_router ch_router_global_topk = {
    .name = "global_topk",
    .summary = "the n * c highest scores of a pool, over all experts; an expert gets at most twice its even load",
    .reads = CHOIR_READS_SCORES,
    .depends_on = CHOIR_DEPENDS_ON_ALL,
    .gates = CHOIR_GATES_SCORE,
    .takes = {.capacity = 1, .pools = 1, .cap = 1, .decay = 1},
    .defaults = {.capacity_factor = 2},
    .check = check_global_topk,
    .max_slots = max_slots,
    .route = route_global_topk,
    .causal = ch_router_by_thresholds,
    .observe = ch_router_observe_cutoffs,
    .backward = ch_router_gates_backward,
};
