/* Exponentials over rows (rows.h). Sums and maxima use one lane per vector element, so their order depends only on the
 * instruction set. */
#include "cpu/simd/rows.h"

#include <math.h>

#include "cpu/simd/row_exp.h"

#define CH_ROWS_INLINE static inline __attribute__((always_inline))

enum { FLUSH = 4096, FOUR = 4 };

/* Rounds up to a multiple of every vector length. */
static int whole_lanes(int count) { return (count + CH_SCORES_PAD - 1) / CH_SCORES_PAD * CH_SCORES_PAD; }

/* Sets columns `seen` .. `end`-1, rounded up to whole vectors, to 0. */
static void hide(int seen, int end, float *x) {
  int j = seen / CH_LANES * CH_LANES;
  if (j < seen) {
    ch_mask in_sight = ch_lane_numbers() < seen - j;
    ch_store(x + j, (ch_vector)((ch_mask)ch_load(x + j) & in_sight));
    j += CH_LANES;
  }
  for (; j < end; j += CH_LANES) ch_store(x + j, (ch_vector){0});
}

/* Adds the bias to vector j of a row, and masks columns from `seen` on. */
CH_ROWS_INLINE ch_vector add_bias(const float *x, const float *bias, int j, int seen, int whole) {
  ch_vector value = ch_load(x + j) + ch_load(bias + j);
  if (whole) return value;
  ch_mask in_sight = ch_lane_numbers() < seen - j;
  return (ch_vector)(((ch_mask)value & in_sight) | ((ch_mask)ch_splat(-INFINITY) & ~in_sight));
}

/* Rows r .. r+count-1, whose last visible columns are in the same vector. Their chains of maxima and sums are
 * interleaved to hide latency; each row gets the same bits as alone. */
CH_ROWS_INLINE void softmax(const ch_scores_block *b, int count, int r, float *s, float *inverse, float *lse) {
  int seen = ch_scores_seen(b, r), more = !b->bidirectional, last = (seen - 1) / CH_LANES * CH_LANES;
  int64_t ld = b->ld;
  const float *bias = b->bias + b->T - 1 - (b->first + r);
  float *x = s + r * ld;
  ch_vector top[FOUR], sum[FOUR] = {{0}};
#pragma GCC unroll 4
  for (int i = 0; i < count; i++) {
    top[i] = add_bias(x + i * ld, bias - i, last, seen + i * more, 0);
    ch_store(x + i * ld + last, top[i]);
  }
  for (int j = 0; j < last; j += CH_LANES)
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) {
      ch_vector value = add_bias(x + i * ld, bias - i, j, 0, 1);
      ch_store(x + i * ld + j, value);
      top[i] = ch_vector_max(value, top[i]);
    }
  float max[FOUR];
  for (int i = 0; i < count; i++) max[i] = ch_vector_largest(top[i]);
  for (int j = 0; j <= last; j += CH_LANES)
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) {
      ch_vector value = ch_vector_exp_to_88(ch_load(x + i * ld + j) - max[i]);
      ch_store(x + i * ld + j, value);
      sum[i] += value;
    }
  for (int i = 0; i < count; i++) {
    inverse[r + i] = ch_vector_sum(sum[i]); /* not yet inverted */
    lse[r + i] = max[i];
    hide(last + CH_LANES, ch_scores_columns(b), x + i * ld);
  }
}

void CH_SIMD(ch_scores_softmax)(const ch_scores_block *b, float *s, float *inverse, float *lse) {
  for (int r = 0; r < b->rows;)
    if ((b->first + r) % FOUR == 0 && r + FOUR <= b->rows)
      softmax(b, FOUR, r, s, inverse, lse), r += FOUR;
    else
      softmax(b, 1, r, s, inverse, lse), r++;
#pragma omp simd
  for (int r = 0; r < b->rows; r++) {
    lse[r] += ch_log_from_1(inverse[r]);
    inverse[r] = 1 / inverse[r];
  }
}

/* P and dS of one row [columns]; columns is a multiple of CH_SCORES_PAD. */
static void exponentials(int columns, const float *bias, float lse, float delta, float *restrict p,
                         float *restrict ds) {
#pragma omp simd
  for (int j = 0; j < columns; j++) {
    float value = ch_exp_to_88(p[j] + bias[j] - lse);
    p[j] = value;
    ds[j] = value * (ds[j] - delta);
  }
}

void CH_SIMD(ch_scores_backward)(const ch_scores_block *b, int key, float *s, float *dp, const float *lse,
                                 const float *delta, float *dbias) {
  for (int r = 0; r < b->rows; r++) {
    int seen = ch_scores_seen(b, r) - key, columns = seen < CH_SCORES_CHUNK ? whole_lanes(seen) : CH_SCORES_CHUNK;
    int distance = b->T - 1 - (b->first + r) + key; /* index of the bias of column `key` */
    float *p = s + r * b->ld, *restrict ds = dp + r * b->ld, *restrict sums = dbias + distance;
    exponentials(columns, b->bias + distance, lse[r], delta[r], p, ds);
    if (seen < CH_SCORES_CHUNK) hide(seen, CH_SCORES_CHUNK, p), hide(seen, CH_SCORES_CHUNK, ds);
#pragma omp simd
    for (int j = 0; j < columns; j++) sums[j] += ds[j];
  }
}

double CH_SIMD(ch_cross_entropy)(int count, int target, float *logits, double *sum) {
  float max = ch_row_max(count, logits), at_target = logits[target] - max;
  *sum = 0;
  for (int j = 0; j < count; j += FLUSH)
    *sum += (double)ch_row_exp(count - j < FLUSH ? count - j : FLUSH, logits + j, max);
  return log(*sum) - (double)at_target;
}
