/* The two loops of a softmax over one row, for files that are compiled by instruction set. Sums and maxima run in as
 * many lanes as a vector has: their order is fixed by the instruction set, and by nothing else. */
#ifndef CH_CPU_SIMD_ROW_EXP_H
#define CH_CPU_SIMD_ROW_EXP_H

#include <math.h>

#include "cpu/simd/vector.h"
#include "cpu/simd/vexp.h"

/* ch_exp_to_88 of every lane. */
static inline ch_vector ch_vector_exp_to_88(ch_vector x) {
  float lane[CH_LANES];
  ch_store(lane, x);
#pragma omp simd
  for (int l = 0; l < CH_LANES; l++) lane[l] = ch_exp_to_88(lane[l]);
  return ch_load(lane);
}

/* Largest of x. NaN may be passed over here; it is found again in the sum of exponentials. */
static inline float ch_row_max(int count, const float *x) {
  ch_vector lanes = (ch_vector){0} - INFINITY;
  int j = 0;
  for (; j + CH_LANES <= count; j += CH_LANES) lanes = ch_vector_max(ch_load(x + j), lanes);
  float max = ch_vector_largest(lanes);
  for (; j < count; j++) max = x[j] > max ? x[j] : max;
  return max;
}

/* x = exp(x - max) of values that are at most max; returns the sum. */
static inline float ch_row_exp(int count, float *x, float max) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int j = 0; j < count; j++) sum += x[j] = ch_exp_to_88(x[j] - max);
  return sum;
}

#endif
