/* Tiles of choir's own product: computes them and writes them to the output. */
#ifndef CH_CPU_SIMD_OUTPUT_H
#define CH_CPU_SIMD_OUTPUT_H

#include "cpu/simd/problem.h"
#include "cpu/simd/tile.h"
#include "cpu/simd/write.h"

/* Writes the transpose of a tile: `rows` floats of each column. */
CH_TILE_INLINE void write_columns(const ch_problem *q, const float *tile, float *c, int64_t rows, int64_t columns,
                                  int add) {
  for (int64_t l = 0; l < columns; l++, c += q->ldc)
#pragma GCC unroll 6
    for (int64_t r = 0; r < rows; r++) {
      float sum = tile[r * CH_TILE_COLUMNS + l];
      c[r] = add ? ch_fma(q->alpha, sum, c[r]) : q->alpha * sum;
    }
}

static void write_transposed(const ch_problem *q, const float *tile, float *c, int64_t rows, int64_t columns, int add) {
  if (rows == CH_TILE_ROWS && !add) /* the common case, without branches */
    write_columns(q, tile, c, CH_TILE_ROWS, columns, 0);
  else
    write_columns(q, tile, c, rows, columns, add);
}

/* One tile of C: its indices, and the depth of its sums. */
typedef struct {
  int64_t i, j, depth;
  ch_left a;
  ch_right b;
  ch_ahead ahead;
  int add;
} ch_task;

/* Computes a tile; `rows` is a compile-time constant. */
CH_TILE_INLINE void tile(const ch_problem *q, const ch_task *t, int rows, int pairs, int copying) {
  ch_vector sum[CH_TILE_ROWS][CH_TILE_VECTORS];
  ch_right b = {t->b.at, copying ? t->b.step : CH_TILE_COLUMNS, copying ? t->b.copy : NULL};
  float *c = q->c_transposed ? q->c + t->j * q->ldc + t->i : q->c + t->i * q->ldc + t->j;
  int64_t columns = ch_min(q->n - t->j, CH_TILE_COLUMNS);
  int whole = !q->c_transposed && columns == CH_TILE_COLUMNS;
  int streams = q->streams && !t->add;
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
    for (int v = 0; v < CH_TILE_VECTORS; v++) sum[r][v] = (ch_vector){0};
  for (int r = 0; r < rows && whole && !streams; r++)
    for (int v = 0; v < CH_TILE_COLUMNS; v += 16) __builtin_prefetch(c + r * q->ldc + v, 1);
  ch_tile_steps(rows, pairs, t->depth, t->a, b, t->ahead, sum);
  if (!whole) {
    float part[CH_TILE_ROWS * CH_TILE_COLUMNS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
      for (int v = 0; v < CH_TILE_VECTORS; v++) ch_store(part + r * CH_TILE_COLUMNS + v * CH_LANES, sum[r][v]);
    if (q->c_transposed)
      write_transposed(q, part, c, rows, columns, t->add);
    else
      ch_write_part(q, part, CH_TILE_COLUMNS, c, rows, columns, t->add);
    return;
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++, c += q->ldc)
#pragma GCC unroll 4
    for (int v = 0; v < CH_TILE_VECTORS; v++) ch_write_vector(q, sum[r][v], c + v * CH_LANES, t->add, streams);
}

CH_TILE_INLINE void tile_of(const ch_problem *q, const ch_task *t, int64_t rows, int pairs) {
  switch (rows) {
    case 1:
      tile(q, t, 1, pairs, 0);
      break;
    case 2:
      tile(q, t, 2, pairs, 0);
      break;
    case 3:
      tile(q, t, 3, pairs, 0);
      break;
    case 4:
      tile(q, t, 4, pairs, 0);
      break;
    case 5:
      tile(q, t, 5, pairs, 0);
      break;
    default:
      tile(q, t, CH_TILE_ROWS, pairs, 0);
  }
}

static void ch_run_tile(const ch_problem *q, const ch_task *t, int64_t rows) {
  if (t->b.copy)
    tile(q, t, CH_TILE_ROWS, 0, 1);
  else if (CH_HAS_PAIRS && q->factors == CH_PAIRS)
    tile_of(q, t, rows, 1);
  else
    tile_of(q, t, rows, 0);
}

#endif
