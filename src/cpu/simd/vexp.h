/* exp in float as straight-line code, so that the compiler vectorises loops over it. Relative error below 1e-7. */
#ifndef CH_CPU_SIMD_VEXP_H
#define CH_CPU_SIMD_VEXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t ch_float_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float ch_bits_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* exp of x <= 88, where results below the normal range are 0 and NaN stays NaN. exp(x) = 2^n exp(r), n = round(x / ln
 * 2), |r| <= ln 2 / 2, ln 2 split in two so that r is exact enough. Adding 1.5 * 2^23 rounds to an integer and leaves
 * it in the low bits; with 127 more these are the exponent of 2^n. */
static inline float ch_exp_to_88(float x) {
  const float shift = 12582912.0f + 127.0f;
  float t = x * 1.44269504f + shift;
  float n = t - shift;
  float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.381454018e-3f; /* minimax for exp(r), relative error 3e-9 */
  p = p * r + 8.368745109e-3f;
  p = p * r + 4.166839078e-2f;
  p = p * r + 1.66665204e-1f;
  p = p * r + 4.999999343e-1f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  float y = p * ch_bits_float(ch_float_bits(t) << 23);
  return x < -87.3f ? 0.0f : y;
}

/* exp of any x: infinity from 88.37 on, where 2^n would be. */
static inline float ch_expf(float x) {
  float y = ch_exp_to_88(x);
  return x > 88.37f ? INFINITY : y;
}

#endif
