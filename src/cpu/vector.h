/* The widest float vector of the instruction set that a simd_*.c file is being compiled for. */
#ifndef CH_CPU_VECTOR_H
#define CH_CPU_VECTOR_H

#include <stdint.h>

#if defined(__AVX512F__)
enum { CH_LANES = 16 };
#elif defined(__AVX2__)
enum { CH_LANES = 8 };
#else
enum { CH_LANES = 4 };
#endif

/* Loads and stores of these need no alignment beyond a float's. */
typedef float ch_vector __attribute__((vector_size(CH_LANES * sizeof(float)), aligned(4), may_alias));
typedef int32_t ch_mask __attribute__((vector_size(CH_LANES * sizeof(float)), aligned(4), may_alias));

static inline ch_vector ch_load(const float *x) { return *(const ch_vector *)x; }
static inline void ch_store(float *x, ch_vector v) { *(ch_vector *)x = v; }

/* Where a > b, else b: NaN in a is passed over. */
static inline ch_vector ch_vector_max(ch_vector a, ch_vector b) {
  ch_mask larger = a > b;
  return (ch_vector)(((ch_mask)a & larger) | ((ch_mask)b & ~larger));
}

/* Over the lanes, as a tree: the shortest chain of additions, and the same order always. */
static inline float ch_vector_sum(ch_vector v) {
  float lane[CH_LANES];
  ch_store(lane, v);
  for (int half = CH_LANES / 2; half > 0; half /= 2)
    for (int l = 0; l < half; l++) lane[l] += lane[l + half];
  return lane[0];
}

static inline float ch_vector_largest(ch_vector v) {
  float lane[CH_LANES];
  ch_store(lane, v);
  for (int half = CH_LANES / 2; half > 0; half /= 2)
    for (int l = 0; l < half; l++) lane[l] = lane[l + half] > lane[l] ? lane[l + half] : lane[l];
  return lane[0];
}

#endif
