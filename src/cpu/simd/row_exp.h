/* The two loops of a softmax over one row, for files compiled per instruction set. Sums and maxima use one lane per
 * vector element, so their order depends only on the instruction set. */
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

/* Max of x, in four independent chains to hide latency. May ignore NaN, which then shows in the sum of exponentials. */
static inline float ch_row_max(int count, const float *x) {
  enum { CHAINS = 4, STEP = CHAINS * CH_LANES };
  ch_vector lanes[CHAINS];
  int j = 0;
  for (int c = 0; c < CHAINS; c++) lanes[c] = (ch_vector){0} - INFINITY;
  for (; j + STEP <= count; j += STEP)
#pragma GCC unroll 4
    for (int c = 0; c < CHAINS; c++) lanes[c] = ch_vector_max(ch_load(x + j + c * CH_LANES), lanes[c]);
  for (; j + CH_LANES <= count; j += CH_LANES) lanes[0] = ch_vector_max(ch_load(x + j), lanes[0]);
  float max = ch_vector_largest(ch_vector_max(ch_vector_max(lanes[0], lanes[1]), ch_vector_max(lanes[2], lanes[3])));
  for (; j < count; j++) max = x[j] > max ? x[j] : max;
  return max;
}

/* x = exp(x - max); returns the sum. Requires x <= max. */
static inline float ch_row_exp(int count, float *x, float max) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int j = 0; j < count; j++) sum += x[j] = ch_exp_to_88(x[j] - max);
  return sum;
}

#endif
