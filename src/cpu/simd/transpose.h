/* Transposed copies of floats, through registers. */
#ifndef CH_CPU_SIMD_TRANSPOSE_H
#define CH_CPU_SIMD_TRANSPOSE_H

#include "cpu/simd/vector.h"

/* y[p,c] = x[c,p] for four columns and CH_LANES rows of x. Each vector holds a quad (four floats) of every fourth row,
 * so that shuffles within quads suffice. */
static inline void ch_transpose_lanes(const float *x, int64_t ldx, float *y, int64_t ldy) {
  ch_vector row[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const float *at = x + i * ldx;
#if defined(__AVX512F__)
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(at));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(at + 4 * ldx), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(at + 8 * ldx), 2);
    row[i] = (ch_vector)_mm512_insertf32x4(v, _mm_loadu_ps(at + 12 * ldx), 3);
#elif defined(__FMA__)
    __m256 v = _mm256_castps128_ps256(_mm_loadu_ps(at));
    row[i] = (ch_vector)_mm256_insertf128_ps(v, _mm_loadu_ps(at + 4 * ldx), 1);
#else
    row[i] = ch_load(at);
#endif
  }
#if defined(__AVX512F__)
#define CH_LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define CH_HIGH(a, b) __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define CH_FIRST(a, b) __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define CH_SECOND(a, b) __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#elif defined(__FMA__)
#define CH_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define CH_HIGH(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define CH_FIRST(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define CH_SECOND(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#else
#define CH_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define CH_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define CH_FIRST(a, b) __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define CH_SECOND(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
#endif
  ch_vector low = CH_LOW(row[0], row[1]), high = CH_HIGH(row[0], row[1]);
  ch_vector low2 = CH_LOW(row[2], row[3]), high2 = CH_HIGH(row[2], row[3]);
  ch_store(y, CH_FIRST(low, low2));
  ch_store(y + ldy, CH_SECOND(low, low2));
  ch_store(y + 2 * ldy, CH_FIRST(high, high2));
  ch_store(y + 3 * ldy, CH_SECOND(high, high2));
#undef CH_LOW
#undef CH_HIGH
#undef CH_FIRST
#undef CH_SECOND
}

/* y[p,c] = x[c,p] for `rows` rows and `columns` columns of x; one cache line of each row at a time, so that the output
 * stays in the cache. */
static inline void ch_transpose(int64_t rows, int64_t columns, const float *x, int64_t ldx, float *y, int64_t ldy) {
  for (int64_t begin = 0; begin < columns; begin += 16) {
    int64_t end = begin + 16 < columns ? begin + 16 : columns;
    for (int64_t c = 0, next; c < rows; c = next) {
      int64_t p = begin;
      next = c + CH_LANES < rows ? c + CH_LANES : rows;
      for (; c + CH_LANES <= rows && p + 4 <= end; p += 4)
        ch_transpose_lanes(x + c * ldx + p, ldx, y + p * ldy + c, ldy);
      for (; p < end; p++)
        for (int64_t i = c; i < next; i++) y[p * ldy + i] = x[i * ldx + p];
    }
  }
}

#endif
