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

/* exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2, ln 2 split in two so that r is exact enough. Adding 1.5 *
 * 2^23 rounds to an integer and leaves it in the low bits. Results below the normal range are 0; NaN stays NaN. */
static inline float ch_expf(float x) {
  const float shift = 12582912.0f;
  float t = x * 1.44269504f + shift;
  float n = t - shift;
  float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f; /* minimax polynomial of (exp(r) - 1 - r) / r^2, from Cephes' expf */
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  float y = ch_bits_float(ch_float_bits(p) + (ch_float_bits(t) << 23));
  y = x > 88.722f ? INFINITY : y;
  y = x < -87.3f ? 0.0f : y;
  return x == x ? y : x;
}

#endif
