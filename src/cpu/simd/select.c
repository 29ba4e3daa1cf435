/* Top-k selection per expert in linear time.
 *
 * Scores become integers that sort like them, transposed so that an expert's keys are contiguous. The k-th largest key
 * is then found by searching the key's value: count how many keys reach three trial values, keep the quarter that must
 * hold the answer, at most 16 times. Counting is a branch-free vector loop over a few cache lines; that beats
 * histograms, whose updates wait for each other where scores crowd, and partitioning, which mispredicts branches. */

#include <string.h>

#include "cpu/simd/fill.h"
#include "cpu/simd/vexp.h"

enum { EXPERTS = 32, TOKENS = 16 }; /* a group of experts whose keys exist at a time; tokens transposed together */
enum { KEY_INVALID = INT32_MIN, KEY_NAN };

/* Larger score, larger key; -0 equals +0; NaN below every number. */
static inline int32_t key_of(float score) {
  int32_t bits = (int32_t)ch_float_bits(score + 0.0f); /* -0 + 0 = +0 */
  int32_t key = bits ^ (bits >> 31 & INT32_MAX);
  return score == score ? key : KEY_NAN;
}

/* An expert's keys start this far after the previous expert's: whole cache lines, and one more, lest powers of two put
 * all experts' lines into one set of the cache. */
static int64_t key_stride(int n) { return ch_pieces(n, TOKENS) * TOKENS + TOKENS; }

/* Pools of every stride-th token: their keys are lined up, pool by pool. Where the key of token t is, and back. */
static inline int place_of(const ch_select_args *a, int t) { return a->pool_begin[t % a->stride] + t / a->stride; }
static inline int token_at(const ch_select_args *a, int pool, int place) {
  return a->stride > 1 ? pool + (place - a->pool_begin[pool]) * a->stride : place;
}

/* Keys of `tokens` tokens from `first` and `experts` experts from `expert`: keys [experts,key_stride]. */
static void transpose(const ch_select_args *a, int first, int tokens, int expert, int experts, int32_t *keys) {
  int64_t stride = key_stride(a->record->tokens), e = a->record->experts;
  int32_t tile[TOKENS][EXPERTS];
  for (int t = 0; t < tokens; t++) {
    const float *score = a->score + (first + t) * e + expert;
    int32_t valid = !a->valid || a->valid[first + t];
#pragma omp simd
    for (int j = 0; j < experts; j++) tile[t][j] = valid ? key_of(score[j]) : KEY_INVALID;
  }
  if (a->stride > 1) {
    for (int t = 0; t < tokens; t++)
      for (int j = 0, place = place_of(a, first + t); j < experts; j++) keys[j * stride + place] = tile[t][j];
    return;
  }
  for (int j = 0; j < experts; j++)
    for (int t = 0; t < tokens; t++) keys[j * stride + first + t] = tile[t][j];
}

typedef struct {
  int32_t key; /* take keys above it ... */
  int ties;    /* ... and the first so many that equal it */
} threshold;

/* Finds the k-th largest of n keys. Known throughout: at least k keys reach low, fewer than k (namely `above`) reach
 * high.
 */
static threshold find_threshold(const int32_t *key, int n, int k) {
  int32_t smallest = INT32_MAX, largest = INT32_MIN;
#pragma omp simd reduction(min : smallest) reduction(max : largest)
  for (int t = 0; t < n; t++) {
    smallest = key[t] < smallest ? key[t] : smallest;
    largest = key[t] > largest ? key[t] : largest;
  }
  int64_t low = smallest, high = (int64_t)largest + 1;
  int above = 0;
  while (high - low > 1) {
    int64_t quarter = (high - low + 3) / 4;
    int32_t trial[3];
    int reach[3], a = 0, b = 0, c = 0;
    for (int i = 0; i < 3; i++) {
      int64_t value = low + (i + 1) * quarter;
      trial[i] = (int32_t)(value < high ? value : high - 1);
    }
    int32_t first = trial[0], second = trial[1], third = trial[2];
#pragma omp simd reduction(+ : a, b, c)
    for (int t = 0; t < n; t++) {
      a += key[t] >= first;
      b += key[t] >= second;
      c += key[t] >= third;
    }
    reach[0] = a, reach[1] = b, reach[2] = c;
    for (int i = 0; i < 3 && trial[i] < high; i++) {
      if (reach[i] == k) return (threshold){trial[i], k}; /* a gap between the k-th and the next: all of them */
      if (reach[i] > k) {
        low = trial[i];
      } else {
        high = trial[i];
        above = reach[i];
      }
    }
  }
  return (threshold){(int32_t)low, k - above};
}

/* Writes the tokens that pass, ascending: candidates of a run without a branch, then those among them that ties leave.
 * Returns the last of the smallest taken. */
static int take_smallest(const int32_t *key, int n, int first, threshold limit, int *slot_token) {
  enum { RUN = 512 };
  int candidate[RUN], last = first;
  int32_t smallest = INT32_MAX;
  for (int begin = 0; begin < n; begin += RUN) {
    int end = begin + RUN < n ? begin + RUN : n, count = 0;
    for (int t = begin; t < end; t++) {
      candidate[count] = t;
      count += key[t] >= limit.key;
    }
    for (int i = 0; i < count; i++) {
      int t = candidate[i];
      if (key[t] == limit.key && limit.ties-- <= 0) continue;
      *slot_token++ = first + t;
      if (key[t] <= smallest) smallest = key[t], last = first + t;
    }
  }
  return last;
}

/* Pools lie among each other: an expert's `count` tokens, found pool by pool, in ascending order. taken: [n] */
static void sort_tokens(int n, int count, int *token, uint8_t *selected) {
  memset(selected, 0, (size_t)n);
  for (int s = 0; s < count; s++) selected[token[s]] = 1;
  for (int t = 0; t < n; t++)
    if (selected[t]) *token++ = t;
}

/* All pools of one expert, keys [n]. taken: [n], of pools with a stride. */
static void select_expert(const ch_select_args *a, int expert, const int32_t *key, int per_expert, uint8_t *selected) {
  const ch_record *r = a->record;
  int slot = expert * per_expert, *token = r->slot_token + slot;
  r->expert_begin[expert] = slot;
  for (int p = 0; p < a->pools; p++) {
    int begin = a->pool_begin[p], n = a->pool_begin[p + 1] - begin;
    float *cutoff = a->cutoff ? a->cutoff + (int64_t)p * r->experts + expert : NULL;
    if (cutoff) *cutoff = INFINITY; /* k of 0: no score is good enough */
    if (!a->k[p]) continue;
    int last = take_smallest(key + begin, n, begin, find_threshold(key + begin, n, a->k[p]), token);
    if (cutoff) *cutoff = a->score[(int64_t)token_at(a, p, last) * r->experts + expert];
    for (int s = 0; s < a->k[p] && a->stride > 1; s++) token[s] = token_at(a, p, token[s]);
    token += a->k[p];
  }
  if (a->stride > 1) sort_tokens(r->tokens, per_expert, r->slot_token + slot, selected);
}

CH_SIMD_SCRATCH_OP(select) {
  const ch_record *r = a->record;
  int n = r->tokens, e = r->experts, group = e < EXPERTS ? e : EXPERTS;
  CH_SCRATCH(x);
  int32_t *keys = CH_NEW(&x->scratch, int32_t, group * key_stride(n));
  uint8_t *selected = a->stride > 1 ? CH_NEW(&x->scratch, uint8_t, group * (int64_t)n) : NULL;
  if (ch_counting(x)) return;
  int per_expert = 0;
  for (int p = 0; p < a->pools; p++) per_expert += a->k[p];
#pragma omp parallel num_threads(x->threads) if ((int64_t)n * e > CH_PIECE)
  for (int begin = 0; begin < e; begin += group) {
    int experts = e - begin < group ? e - begin : group;
#pragma omp for
    for (int t = 0; t < n; t += TOKENS) transpose(a, t, n - t < TOKENS ? n - t : TOKENS, begin, experts, keys);
#pragma omp for schedule(dynamic, 1)
    for (int i = 0; i < experts; i++)
      select_expert(a, begin + i, keys + i * key_stride(n), per_expert, selected ? selected + i * (int64_t)n : NULL);
  }
  r->expert_begin[e] = e * per_expert;
}
