/* Top-k selection per expert in linear time.
 *
 * Scores are converted to integer keys with the same order, and transposed so that an expert's keys are contiguous. The
 * k-th largest key is then found by searching the key's value: count how many keys reach three trial values, keep the
 * quarter that must hold the answer, at most 16 times. Counting is a branch-free vector loop over a few cache lines;
 * this is faster than histograms, whose updates depend on each other if scores are close, and than partitioning, which
 * mispredicts branches. */

#include <string.h>

#include "cpu/simd/fill.h"
#include "cpu/simd/vexp.h"

enum { EXPERTS = 32, TOKENS = 16 }; /* experts whose keys are stored at a time; tokens transposed together */
enum { KEY_INVALID = INT32_MIN, KEY_NAN };

/* Order-preserving integer key of a score; -0 equals +0; NaN is below every number. */
static inline int32_t key_of(float score) {
  int32_t bits = (int32_t)ch_float_bits(score + 0.0f); /* -0 + 0 = +0 */
  int32_t key = bits ^ (bits >> 31 & INT32_MAX);
  return score == score ? key : KEY_NAN;
}

/* Stride between experts' keys: whole cache lines plus one, so that with a power-of-two n experts' lines do not share
 * one cache set. */
static int64_t key_stride(int n) { return ch_pieces(n, TOKENS) * TOKENS + TOKENS; }

/* If a pool is every stride-th token, keys are stored pool by pool: position of the key of token t, and the inverse. */
static inline int place_of(const ch_select_args *a, int t) { return a->pool_begin[t % a->stride] + t / a->stride; }
static inline int token_at(const ch_select_args *a, int pool, int place) {
  return a->stride > 1 ? pool + (place - a->pool_begin[pool]) * a->stride : place;
}

/* Writes the keys of `tokens` tokens from `first` on and `experts` experts from `expert` on: keys
 * [experts,key_stride]. */
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
  int32_t key; /* select keys above this key ... */
  int ties;    /* ... and the first `ties` keys equal to it */
} threshold;

/* Finds the k-th largest of n keys. Invariant: at least k keys are >= low; fewer than k (namely `above`) are >=
 * high. */
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
      if (reach[i] == k) return (threshold){trial[i], k}; /* a trial between the k-th key and the next: no ties */
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

/* Writes the selected tokens, ascending: first a run's candidates without a branch, then drops surplus ties. Returns
 * the last token with the smallest selected key. */
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

/* Interleaved pools: sorts an expert's `count` tokens, found pool by pool, in ascending order. selected: [n] scratch */
static void sort_tokens(int n, int count, int *token, uint8_t *selected) {
  memset(selected, 0, (size_t)n);
  for (int s = 0; s < count; s++) selected[token[s]] = 1;
  for (int t = 0; t < n; t++)
    if (selected[t]) *token++ = t;
}

/* Selects in all pools of one expert; key: [n]; selected: [n] scratch if pools are interleaved. */
static void select_expert(const ch_select_args *a, int expert, const int32_t *key, int per_expert, uint8_t *selected) {
  const ch_record *r = a->record;
  int slot = expert * per_expert, *token = r->slot_token + slot;
  r->expert_begin[expert] = slot;
  for (int p = 0; p < a->pools; p++) {
    int begin = a->pool_begin[p], n = a->pool_begin[p + 1] - begin;
    float *cutoff = a->cutoff ? a->cutoff + (int64_t)p * r->experts + expert : NULL;
    if (cutoff) *cutoff = INFINITY; /* k = 0: no score reaches the cut-off */
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
