/* Products of attention: rows of tiles in registers; each element is the sum over p of a[r,p] b[p,:]. With compile-time
 * strides the tiles of a narrow head lose a tenth less time between loops. */
#ifndef CH_CPU_SIMD_ATTENTION_TILE_H
#define CH_CPU_SIMD_ATTENTION_TILE_H

#include <string.h>

#include "cpu/simd/attention_head.h"
#include "cpu/simd/tile.h"

/* Rows per tile, with two vectors each: enough accumulators to hide latency, and registers left for operands. */
enum { CH_HEAD_ROWS = CH_LANES == 16 ? 8 : 4, CH_HEAD_COLUMNS = 2 * CH_LANES };

/* A right operand. Row-major: step p, column j is at p * step + j. In contiguous panels of CH_HEAD_COLUMNS columns:
 * column j's panel begins at j * column. */
typedef struct {
  const float *at;
  int64_t step, column;
} ch_head_right;

/* Destination of a row of tiles. */
typedef struct {
  const float *from; /* addend with the same columns, or NULL */
  int64_t from_ld;
  float *to;
  int64_t ld;
  int rows;             /* 0: writes whole tiles, unscaled; else this many rows, scaled, without padding columns */
  float factor;         /* scale of every row */
  const float *factors; /* scale per row instead of `factor`, or NULL */
} ch_head_result;

/* Writes a vector at row r, column j; `left` columns remain in the row. */
CH_TILE_INLINE void ch_head_put(const ch_head_result *c, int r, int j, int left, ch_vector sum) {
  if (r >= c->rows || left <= 0) return;
  sum *= c->factors ? c->factors[r] : c->factor;
  if (left >= CH_LANES)
    ch_store(c->to + r * c->ld + j, sum);
  else
    memcpy(c->to + r * c->ld + j, &sum, (size_t)left * sizeof(float));
}

/* A tile of CH_HEAD_ROWS rows by `vectors` vectors from column j of `width` on, `count` steps deep. The loop is simpler
 * than ch_tile_step's, with which T=128, d_head=32 took 4 % longer. */
CH_TILE_INLINE void ch_head_tile(int vectors, int count, ch_left a, const float *b, int64_t step,
                                 const ch_head_result *c, int j, int width) {
  ch_vector sum[CH_HEAD_ROWS][2];
#pragma GCC unroll 8
  for (int r = 0; r < CH_HEAD_ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++)
      sum[r][v] = c->from ? ch_load(c->from + r * c->from_ld + j + v * CH_LANES) : (ch_vector){0};
  for (int p = 0; p < count; p++) {
    ch_vector right[2];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++) right[v] = ch_load(b + v * CH_LANES);
#pragma GCC unroll 8
    for (int r = 0; r < CH_HEAD_ROWS; r++)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; v++) sum[r][v] += a.at[r * a.row] * right[v];
    a.at += a.step;
    b += step;
  }
  if (!c->rows) {
#pragma GCC unroll 8
    for (int r = 0; r < CH_HEAD_ROWS; r++)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; v++) ch_store(c->to + r * c->ld + j + v * CH_LANES, sum[r][v]);
    return;
  }
#pragma GCC unroll 8
  for (int r = 0; r < CH_HEAD_ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++) ch_head_put(c, r, j + v * CH_LANES, width - j - v * CH_LANES, sum[r][v]);
}

/* A row of tiles: `width` columns, rounded up to whole vectors. */
CH_TILE_INLINE void ch_head_tiles(int count, ch_left a, ch_head_right b, ch_head_result c, int width) {
  int j = 0;
  for (; width - j > CH_LANES; j += CH_HEAD_COLUMNS)
    ch_head_tile(2, count, a, b.at + j * b.column, b.step, &c, j, width);
  if (j < width) ch_head_tile(1, count, a, b.at + j * b.column, b.step, &c, j, width);
}

/* The products of attention, for one d_head `dh`. */
typedef struct {
  /* to[ROWS,columns] = a[ROWS,dh] b, b in panels of [dh,COLUMNS] */
  void (*scores)(int dh, const float *a, const float *b, float *to, int64_t ld, int columns);
  /* c += a[ROWS,count] b[count,dh]; rows of a are `row` apart */
  void (*weigh)(int dh, int count, const float *a, int64_t row, const float *b, const ch_head_result *c);
  /* the same with rows (or columns) of a block of scores as `a` */
  void (*rows)(int dh, int count, const float *a, const float *b, const ch_head_result *c);
  void (*columns)(int dh, int count, const float *a, const float *b, const ch_head_result *c);
} ch_head_products;

/* Defines these functions; WIDTH is `dh` or a constant. */
#define CH_HEAD_PRODUCTS(NAME, WIDTH)                                                                                 \
  static void scores_##NAME(int dh, const float *a, const float *b, float *to, int64_t ld, int columns) {             \
    (void)dh;                                                                                                         \
    ch_head_tiles(WIDTH, (ch_left){a, ch_attention_width(WIDTH), 1}, (ch_head_right){b, CH_HEAD_COLUMNS, WIDTH},      \
                  (ch_head_result){.to = to, .ld = ld}, columns);                                                     \
  }                                                                                                                   \
  static void weigh_##NAME(int dh, int count, const float *a, int64_t row, const float *b, const ch_head_result *c) { \
    (void)dh;                                                                                                         \
    ch_head_tiles(count, (ch_left){a, row, 1}, (ch_head_right){b, ch_attention_width(WIDTH), 1}, *c, WIDTH);          \
  }                                                                                                                   \
  static void rows_##NAME(int dh, int count, const float *a, const float *b, const ch_head_result *c) {               \
    (void)dh;                                                                                                         \
    ch_head_tiles(count, (ch_left){a, CH_ATTENTION_LD, 1}, (ch_head_right){b, ch_attention_width(WIDTH), 1}, *c,      \
                  WIDTH);                                                                                             \
  }                                                                                                                   \
  static void columns_##NAME(int dh, int count, const float *a, const float *b, const ch_head_result *c) {            \
    (void)dh;                                                                                                         \
    ch_head_tiles(count, (ch_left){a, 1, CH_ATTENTION_LD}, (ch_head_right){b, ch_attention_width(WIDTH), 1}, *c,      \
                  WIDTH);                                                                                             \
  }                                                                                                                   \
  static const ch_head_products products_##NAME = {scores_##NAME, weigh_##NAME, rows_##NAME, columns_##NAME};

#endif
