/* The innermost loop of products: a tile of the output in registers, sum over p of a[r,p] b[p,:], of floats or of pairs
 * of bf16. */
#ifndef CH_CPU_SIMD_TILE_H
#define CH_CPU_SIMD_TILE_H

#include "cpu/simd/vector.h"

#define CH_TILE_INLINE static inline __attribute__((always_inline))

/* Rows and vectors per tile: accumulators and operands fill the registers. */
enum { CH_TILE_ROWS = 6, CH_TILE_VECTORS = CH_LANES == 16 ? 4 : 2, CH_TILE_COLUMNS = CH_TILE_VECTORS * CH_LANES };

/* A float, or a pair of bf16 of the same size. */
typedef float ch_factor __attribute__((may_alias, aligned(2)));

/* A left operand: row r, step p is at r * row + p * step. */
typedef struct {
  const ch_factor *at;
  int64_t row, step;
} ch_left;

/* A right operand: step p, a row of CH_TILE_COLUMNS, is at p * step. If `copy` is not NULL, rows are also packed
 * there. */
typedef struct {
  const float *at;
  int64_t step;
  float *copy;
} ch_right;

/* Memory to prefetch, one line every second step: rows of CH_TILE_COLUMNS elements, the first at `at`, `step` bytes
 * apart. Row by row, because successive lines of a column would be in different pages. */
typedef struct {
  const void *at;
  int64_t step;
} ch_ahead;

/* Cache lines of one row of a panel, in floats or in bf16. */
CH_TILE_INLINE int ch_tile_lines(int pairs) { return (CH_TILE_COLUMNS * (pairs ? 2 : 4) + 63) / 64; }

/* sum[r][v] += a[r,0] b[0,v]; then advances a and b by one step. */
CH_TILE_INLINE void ch_tile_step(int rows, int pairs, ch_left *a, ch_right *b, ch_vector sum[][CH_TILE_VECTORS]) {
  ch_vector right[CH_TILE_VECTORS];
#pragma GCC unroll 4
  for (int v = 0; v < CH_TILE_VECTORS; v++) right[v] = ch_load(b->at + v * CH_LANES);
  if (b->copy) {
#pragma GCC unroll 4
    for (int v = 0; v < CH_TILE_VECTORS; v++) ch_store(b->copy + v * CH_LANES, right[v]);
    b->copy += CH_TILE_COLUMNS;
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
    for (int v = 0; v < CH_TILE_VECTORS; v++) {
      ch_vector left = ch_splat(a->at[r * a->row]);
      sum[r][v] = pairs ? ch_vector_pairs(left, right[v], sum[r][v]) : ch_vector_fma(left, right[v], sum[r][v]);
    }
  a->at += a->step;
  b->at += b->step;
  /* Barrier: interleaved, two steps need more registers for addresses and loads than there are. */
  __asm__ volatile("" : "+r"(a->at), "+r"(b->at) : : "memory");
}

/* sum[rows][] += sum over p < count of a[r,p] b[p,:]. Must be inlined with constant `rows`, so that the sums are in
 * registers. */
CH_TILE_INLINE void ch_tile_steps(int rows, int pairs, int64_t count, ch_left a, ch_right b, ch_ahead ahead,
                                  ch_vector sum[][CH_TILE_VECTORS]) {
  const char *next = ahead.at;
  for (; count >= 2 * ch_tile_lines(pairs); count -= 2 * ch_tile_lines(pairs), next += ahead.step)
#pragma GCC unroll 4
    for (int line = 0; line < ch_tile_lines(pairs); line++) {
      __builtin_prefetch(next + 64 * line, 0, 2);
      ch_tile_step(rows, pairs, &a, &b, sum);
      ch_tile_step(rows, pairs, &a, &b, sum);
    }
  for (; count; count--) ch_tile_step(rows, pairs, &a, &b, sum);
}

#endif
