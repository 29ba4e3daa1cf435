/* Sums and maxima run in as many lanes as a vector has: their order is fixed by the instruction set, and by nothing
 * else. */
#include "cpu/simd/rows.h"

#include <math.h>

#include "cpu/simd/row_exp.h"

enum { FLUSH = 4096 };

/* Rounded up to columns that fill vectors of every kind. */
static int whole_lanes(int count) { return (count + CH_CAUSAL_PAD - 1) / CH_CAUSAL_PAD * CH_CAUSAL_PAD; }

/* Adds the bias to what a row sees, hides the rest of the last vector, and returns the largest. */
static float add_bias(int seen, float *x, const float *bias) {
  const ch_vector hidden = ch_splat(-INFINITY);
  ch_vector lanes = hidden;
  int j = 0;
  for (; j + CH_LANES <= seen; j += CH_LANES) {
    ch_vector value = ch_load(x + j) + ch_load(bias + j);
    ch_store(x + j, value);
    lanes = ch_vector_max(value, lanes);
  }
  for (int end = whole_lanes(seen); j < end; j += CH_LANES) {
    ch_mask in_sight = ch_lane_numbers() < seen - j;
    ch_vector value = ch_load(x + j) + ch_load(bias + j);
    value = (ch_vector)(((ch_mask)value & in_sight) | ((ch_mask)hidden & ~in_sight));
    ch_store(x + j, value);
    lanes = ch_vector_max(value, lanes);
  }
  return ch_vector_largest(lanes);
}

/* Zeros from `seen` to `end`, rounded up to whole vectors. */
static void hide(int seen, int end, float *x) {
  int j = seen / CH_LANES * CH_LANES;
  if (j < seen) {
    ch_mask in_sight = ch_lane_numbers() < seen - j;
    ch_store(x + j, (ch_vector)((ch_mask)ch_load(x + j) & in_sight));
    j += CH_LANES;
  }
  for (; j < end; j += CH_LANES) ch_store(x + j, (ch_vector){0});
}

void CH_SIMD(ch_causal_softmax)(const ch_causal_block *b, float *s, float *inverse, float *lse) {
  for (int r = 0; r < b->rows; r++) {
    int seen = b->first + r + 1, whole = whole_lanes(seen);
    float *row = s + r * b->ld;
    float max = add_bias(seen, row, b->bias + b->T - seen), sum = ch_row_exp(whole, row, max);
    hide(whole, b->first + b->rows, row);
    inverse[r] = 1 / sum;
    lse[r] = max + logf(sum);
  }
}

/* P and dS of `columns`, a multiple of CH_CAUSAL_PAD. */
static void exponentials(int columns, const float *bias, float lse, float delta, float *restrict p,
                         float *restrict ds) {
#pragma omp simd
  for (int j = 0; j < columns; j++) {
    float value = ch_exp_to_88(p[j] + bias[j] - lse);
    p[j] = value;
    ds[j] = value * (ds[j] - delta);
  }
}

void CH_SIMD(ch_causal_backward)(const ch_causal_block *b, int key, float *s, float *dp, const float *lse,
                                 const float *delta, float *dbias) {
  for (int r = 0; r < b->rows; r++) {
    int seen = b->first + r + 1 - key, columns = seen < CH_CAUSAL_CHUNK ? whole_lanes(seen) : CH_CAUSAL_CHUNK;
    int distance = b->T - seen; /* where the bias of column `key` stands */
    float *p = s + r * b->ld, *restrict ds = dp + r * b->ld, *restrict sums = dbias + distance;
    exponentials(columns, b->bias + distance, lse[r], delta[r], p, ds);
    if (seen < CH_CAUSAL_CHUNK) hide(seen, CH_CAUSAL_CHUNK, p), hide(seen, CH_CAUSAL_CHUNK, ds);
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
