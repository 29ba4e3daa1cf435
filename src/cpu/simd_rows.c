/* Sums and maxima run in LANES independent lanes, so that loops vectorise without reordering anybody's additions. */
#include <math.h>

#include "cpu/rows.h"
#include "cpu/vexp.h"

enum { LANES = 16, FLUSH = 4096 };

static float lane_sum(const float *lane) {
  float part[8];
  for (int l = 0; l < 8; l++) part[l] = lane[l] + lane[l + 8];
  for (int l = 0; l < 4; l++) part[l] += part[l + 4];
  return (part[0] + part[2]) + (part[1] + part[3]);
}

/* Largest of x; NaN is passed over, and found again in the sum of exponentials. */
static float row_max(int count, const float *x) {
  float lane[LANES], max = -INFINITY;
  for (int l = 0; l < LANES; l++) lane[l] = -INFINITY;
  int j = 0;
  for (; j + LANES <= count; j += LANES)
    for (int l = 0; l < LANES; l++) lane[l] = x[j + l] > lane[l] ? x[j + l] : lane[l];
  for (; j < count; j++) max = x[j] > max ? x[j] : max;
  for (int l = 0; l < LANES; l++) max = lane[l] > max ? lane[l] : max;
  return max;
}

/* x = exp(x - max); returns the sum. */
static float row_exp(int count, float *x, float max) {
  float lane[LANES] = {0}, sum = 0;
  int j = 0;
  for (; j + LANES <= count; j += LANES)
    for (int l = 0; l < LANES; l++) {
      x[j + l] = ch_expf(x[j + l] - max);
      lane[l] += x[j + l];
    }
  for (; j < count; j++) sum += x[j] = ch_expf(x[j] - max);
  return sum + lane_sum(lane);
}

static void row_add(int count, float *x, const float *y) {
  for (int j = 0; j < count; j++) x[j] += y[j];
}

static void row_zero(float *x, int begin, int end) {
  for (int j = begin; j < end; j++) x[j] = 0;
}

void CH_SIMD(ch_causal_softmax)(const ch_causal_block *b, float *s, float *inverse, float *lse) {
  for (int r = 0; r < b->rows; r++) {
    int seen = b->first + r + 1;
    float *row = s + r * b->ld;
    row_add(seen, row, b->bias + b->T - seen);
    float max = row_max(seen, row), sum = row_exp(seen, row, max);
    row_zero(row, seen, b->first + b->rows);
    inverse[r] = 1 / sum;
    lse[r] = max + logf(sum);
  }
}

void CH_SIMD(ch_causal_backward)(const ch_causal_block *b, float *s, float *dp, const float *lse, const float *delta,
                                 float *dbias) {
  for (int r = 0; r < b->rows; r++) {
    int seen = b->first + r + 1, end = b->first + b->rows;
    float *restrict p = s + r * b->ld, *restrict ds = dp + r * b->ld, *restrict sums = dbias + b->T - seen;
    const float *restrict bias = b->bias + b->T - seen;
    float row_lse = lse[r], row_delta = delta[r];
    for (int j = 0; j < seen; j++) {
      float value = ch_expf(p[j] + bias[j] - row_lse);
      p[j] = value;
      ds[j] = value * (ds[j] - row_delta);
      sums[j] += ds[j];
    }
    row_zero(p, seen, end);
    row_zero(ds, seen, end);
  }
}

double CH_SIMD(ch_cross_entropy)(int count, int target, float *logits, double *sum) {
  float max = row_max(count, logits), at_target = logits[target] - max;
  *sum = 0;
  for (int j = 0; j < count; j += FLUSH)
    *sum += (double)row_exp(count - j < FLUSH ? count - j : FLUSH, logits + j, max);
  return log(*sum) - (double)at_target;
}
