/* The scalar type of the whole library. Production builds compute in float; the test build compiles
 * the same sources with CHOIR_DOUBLE so that every gradient can be checked in double precision. */
#ifndef CH_BASE_REAL_H
#define CH_BASE_REAL_H

#include <stdint.h>
#include <string.h>

#ifdef CHOIR_DOUBLE
typedef double real;
#else
typedef float real;
#endif

typedef uint16_t ch_bf16; /* bit pattern of a bfloat16 */

/* To nearest, ties to even; NaN stays NaN. Branch-free, so that loops over it vectorize. */
static inline ch_bf16 ch_bf16_round(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return (ch_bf16)(x == x ? rounded : (bits >> 16 | 0x40u));
}

static inline float ch_bf16_value(ch_bf16 b) {
  uint32_t bits = (uint32_t)b << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Value of an IEEE half-precision number: 1 sign bit, 5 exponent bits, 10 fraction bits. */
static inline float ch_half_value(uint16_t half) {
  uint32_t exponent = half >> 10 & 31u, fraction = half & 1023u;
  uint32_t bits = (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
  float x;
  memcpy(&x, &bits, sizeof x);
  if (!exponent) x = (float)fraction * 0x1p-24f;
  return half >> 15 ? -x : x;
}

/* The type that the inputs of matrix products are rounded to. Accumulators, master weights, softmax, router, norms and
 * the loss stay in `real` for every compute type. */
typedef enum {
  CH_COMPUTE_FP32 = 0,
  CH_COMPUTE_BF16 = 1,
  CH_COMPUTE_Q8_0 = 2 /* inference only: base/q8.h */
} ch_compute;

#endif
