/* Sums and maxima run in as many lanes as a vector has: their order is fixed by the instruction set, and by nothing
 * else. */
#include "cpu/simd/rows.h"

#include <math.h>

#include "cpu/simd/row_exp.h"

enum { FLUSH = 4096 };

/* Adds the bias to what a row sees of its first `whole` columns, and hides the others. */
static void add_bias(int seen, int whole, float *x, const float *bias) {
  for (int j = 0; j < whole; j++) {
    float value = x[j] + bias[j];
    x[j] = j < seen ? value : -INFINITY;
  }
}

/* Rounded up to columns that fill vectors of every kind. */
static int whole_lanes(int count) { return (count + CH_CAUSAL_PAD - 1) / CH_CAUSAL_PAD * CH_CAUSAL_PAD; }

static void row_zero(float *x, int begin, int end) {
  for (int j = begin; j < end; j++) x[j] = 0;
}

void CH_SIMD(ch_causal_softmax)(const ch_causal_block *b, float *s, float *inverse, float *lse) {
  for (int r = 0; r < b->rows; r++) {
    int seen = b->first + r + 1, whole = whole_lanes(seen);
    float *row = s + r * b->ld;
    add_bias(seen, whole, row, b->bias + b->T - seen);
    float max = ch_row_max(whole, row), sum = ch_row_exp(whole, row, max);
    row_zero(row, whole, b->first + b->rows);
    inverse[r] = 1 / sum;
    lse[r] = max + logf(sum);
  }
}

void CH_SIMD(ch_causal_backward)(const ch_causal_block *b, float *s, float *dp, const float *lse, const float *delta,
                                 float *dbias) {
  for (int r = 0; r < b->rows; r++) {
    int seen = b->first + r + 1, whole = whole_lanes(seen), end = b->first + b->rows;
    float *restrict p = s + r * b->ld, *restrict ds = dp + r * b->ld, *restrict sums = dbias + b->T - seen;
    const float *restrict bias = b->bias + b->T - seen;
    float row_lse = lse[r], row_delta = delta[r];
    for (int j = 0; j < whole; j++) {
      float value = ch_expf(p[j] + bias[j] - row_lse), change = value * (ds[j] - row_delta);
      value = j < seen ? value : 0;
      change = j < seen ? change : 0;
      p[j] = value;
      ds[j] = change;
      sums[j] += change;
    }
    row_zero(p, whole, end);
    row_zero(ds, whole, end);
  }
}

double CH_SIMD(ch_cross_entropy)(int count, int target, float *logits, double *sum) {
  float max = ch_row_max(count, logits), at_target = logits[target] - max;
  *sum = 0;
  for (int j = 0; j < count; j += FLUSH)
    *sum += (double)ch_row_exp(count - j < FLUSH ? count - j : FLUSH, logits + j, max);
  return log(*sum) - (double)at_target;
}
