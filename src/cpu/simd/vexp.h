/* exp in float as straight-line code, so that the compiler vectorizes loops over it. Relative error below 1e-7. */
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

/* exp of x <= 88; subnormal results become 0, NaN stays NaN. exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2,
 * ln 2 split in two so that r is exact enough. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits;
 * the added 127 makes these the exponent bits of 2^n. */
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

/* exp of any x; infinity from 88.37 on, where 2^n overflows. */
static inline float ch_expf(float x) {
  float y = ch_exp_to_88(x);
  return x > 88.37f ? INFINITY : y;
}

static inline float ch_sigmoid(float x) { return 1 / (1 + ch_expf(-x)); }

/* log of a finite x >= 1; NaN stays NaN. x = 2^n m with sqrt(1/2) <= m < sqrt(2). Absolute error below 1e-7 + 1e-7 log.
 */
static inline float ch_log_from_1(float x) {
  const uint32_t root = 0x3f3504f3; /* sqrt(1/2) */
  uint32_t bits = ch_float_bits(x) - root;
  float n = (float)(int32_t)(bits >> 23), f = ch_bits_float((bits & 0x7fffff) + root) - 1, f2 = f * f;
  float p = 7.0376836292e-2f; /* log(1 + f) = f - f^2 / 2 + f^3 p */
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  p = p * f * f2 - n * 2.12194440e-4f - 0.5f * f2;
  return f + p + n * 0.693359375f + (x - x);
}

#endif
