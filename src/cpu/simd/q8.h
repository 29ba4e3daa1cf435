/* Products of rows of floats with packed 8-bit matrices (base/q8.h), on one thread. Definition (src/cpu/ref/q8.c in
 * plain C), which every variant matches bit for bit:
 *
 * Each block of 32 inputs of a row is quantized to bytes: amax is its largest magnitude, scale = amax / 127, and a byte
 * is x * (127 / amax), rounded to nearest, ties to even. Below 2^-100 amax counts as 0; a block with a value that is
 * not finite has the scale NaN. An output is the sum over blocks, in order, starting with 0, of (n * row's scale) *
 * weight's scale, where n, the sum of the products of bytes, is exact. Every operation is rounded to float; none is
 * fused. */
#ifndef CH_CPU_SIMD_Q8_H
#define CH_CPU_SIMD_Q8_H

#include "base/q8.h"
#include "cpu/simd/simd.h"

#define CH_Q8_MIN 0x1p-100f

/* A block of a row: its scale, and -128 times the sum of its bytes, the correction for kernels with unsigned weights
 * (+128). */
typedef struct ch_q8_block {
  float scale;
  int32_t offset;
} ch_q8_block;

/* Quantized rows: bytes [rows][blocks * 32], and blocks [rows][blocks]. */
typedef struct ch_q8_rows {
  int8_t *q;
  ch_q8_block *block;
} ch_q8_rows;

/* Quantizes rows of floats, `ld` apart. */
CH_SIMD_DECLARE(void, ch_q8_round_rows, (int64_t rows, int64_t depth, const float *x, int64_t ld, ch_q8_rows y));

/* C[m,n] (= or +=) alpha * rows * B^T; b: the panel of the first of n outputs. */
typedef struct ch_q8_product {
  int64_t m, n, depth, ldc;
  ch_q8_rows a;
  const ch_q8 *b;
  float *c;
  float alpha;
  int accumulate;
} ch_q8_product;
CH_SIMD_DECLARE(void, ch_q8_product_run, (const ch_q8_product *p));

#if defined(__x86_64__)
/* ch_q8_product_run with the instruction vpdpbusd. */
void ch_q8_product_run_avx512_vnni(const ch_q8_product *p);
#endif

#endif
