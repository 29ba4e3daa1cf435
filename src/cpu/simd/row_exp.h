/* The two loops of a softmax over one row, for files that are compiled by instruction set. Sums and maxima run in as
 * many lanes as a vector has: their order is fixed by the instruction set, and by nothing else. */
#ifndef CH_CPU_SIMD_ROW_EXP_H
#define CH_CPU_SIMD_ROW_EXP_H

#include <math.h>

#include "cpu/simd/vector.h"
#include "cpu/simd/vexp.h"

/* Largest of x. NaN may be passed over here; it is found again in the sum of exponentials. */
static inline float ch_row_max(int count, const float *x) {
  ch_vector lanes = (ch_vector){0} - INFINITY;
  int j = 0;
  for (; j + CH_LANES <= count; j += CH_LANES) lanes = ch_vector_max(ch_load(x + j), lanes);
  float max = ch_vector_largest(lanes);
  for (; j < count; j++) max = x[j] > max ? x[j] : max;
  return max;
}

/* x = exp(x - max); returns the sum. */
static inline float ch_row_exp(int count, float *x, float max) {
  for (int j = 0; j < count; j++) x[j] = ch_expf(x[j] - max);
  ch_vector lanes = {0};
  int j = 0;
  for (; j + CH_LANES <= count; j += CH_LANES) lanes += ch_load(x + j);
  float sum = ch_vector_sum(lanes);
  for (; j < count; j++) sum += x[j];
  return sum;
}

#endif
