/* Packing: copies operands of a product in the order in which tiles read them, as floats or as pairs of bf16. */
#ifndef CH_CPU_SIMD_PACK_H
#define CH_CPU_SIMD_PACK_H

#include <string.h>

#include "base/real.h"
#include "cpu/simd/problem.h"
#include "cpu/simd/tile.h"
#include "cpu/simd/transpose.h"

/* Rows of A that are packed together: a multiple of tiles and of vectors. */
enum { CH_PACK_GROUP = 8 * CH_TILE_ROWS };

/* y[0..count-1] = x, floats or bf16. */
static inline void ch_pack_copy(int64_t count, const void *x, float *y, int bf16) {
  int64_t whole = count / CH_LANES * CH_LANES, i = 0;
  const ch_bf16 *half = x;
  const float *full = x;
  if (bf16)
    for (; i < whole; i += CH_LANES) ch_store(y + i, ch_load_bf16(half + i));
  else
    for (; i < whole; i += CH_LANES) ch_store(y + i, ch_load(full + i));
  for (; i < count; i++) y[i] = bf16 ? ch_bf16_value(half[i]) : full[i];
}

/* y[0..count-1] = pairs of elements of row x and row `next`; zeros replace a missing next row. */
static inline void ch_pack_pairs(int64_t count, const ch_bf16 *x, const ch_bf16 *next, float *y) {
  int64_t whole = next ? count / CH_LANES * CH_LANES : 0;
  for (int64_t i = 0; i < whole; i += CH_LANES) ch_store(y + i, ch_load_pairs(x + i, next + i));
  for (int64_t i = whole; i < count; i++) {
    uint32_t pair = x[i] | (next ? (uint32_t)next[i] << 16 : 0);
    memcpy(y + i, &pair, sizeof pair);
  }
}

/* y[0..count-1] = row p of an operand x [steps,columns], from column `at` on. */
static inline void ch_pack_step(const ch_problem *q, const void *x, int64_t ldx, int64_t p, int64_t at, int64_t count,
                                float *y) {
  const ch_bf16 *half = x;
  if (q->factors == CH_PAIRS) {
    half += 2 * p * ldx + at;
    ch_pack_pairs(count, half, q->odd && p + 1 == q->k ? NULL : half + ldx, y);
  } else if (q->factors == CH_WIDENED) {
    ch_pack_copy(count, half + p * ldx + at, y, 1);
  } else {
    ch_pack_copy(count, (const float *)x + p * ldx + at, y, 0);
  }
}

/* y[p,c] = x[c,p] for `rows` rows of x, from element `at` on. */
static inline void ch_pack_transposed(int64_t rows, int64_t columns, const void *x, int64_t at, int64_t ldx, float *y,
                                      int widen) {
  enum { PART = 16 };
  float part[CH_TILE_COLUMNS * PART];
  if (!widen) {
    ch_transpose(rows, columns, (const float *)x + at, ldx, y, CH_TILE_COLUMNS);
    return;
  }
  for (int64_t p = 0; p < columns; p += PART) {
    int64_t count = ch_min(columns - p, PART);
    for (int64_t c = 0; c < rows; c++) ch_pack_copy(count, (const ch_bf16 *)x + at + c * ldx + p, part + c * PART, 1);
    ch_transpose(rows, count, part, PART, y + p * CH_TILE_COLUMNS, CH_TILE_COLUMNS);
  }
}

/* Packs columns of B from j, `depth` steps from first, as [depth, CH_TILE_COLUMNS], padded with zeros. */
static inline void ch_pack_panel(const ch_problem *q, int64_t j, int64_t first, int64_t depth, float *panel) {
  int64_t columns = ch_min(q->n - j, CH_TILE_COLUMNS);
  if (q->b_transposed)
    ch_pack_transposed(columns, depth, q->b, j * q->ldb + first, q->ldb, panel, q->factors == CH_WIDENED);
  else
    for (int64_t p = 0; p < depth; p++)
      ch_pack_step(q, q->b, q->ldb, first + p, j, columns, panel + p * CH_TILE_COLUMNS);
  for (int64_t p = 0; p < depth && columns < CH_TILE_COLUMNS; p++)
    for (int64_t c = columns; c < CH_TILE_COLUMNS; c++) panel[p * CH_TILE_COLUMNS + c] = 0;
}

/* Packs rows of A, from row i. If a row's steps are adjacent, the layout stays [rows, depth]; this is used only to
 * widen bf16. If steps are far apart, a tile that read A in place would touch a new page for every step; rows are then
 * packed in groups of CH_PACK_GROUP, each [depth, CH_PACK_GROUP], by reading whole lines that the group's tiles
 * share. */
static inline void ch_pack_left(const ch_problem *q, int64_t i, int64_t rows, int64_t first, int64_t depth,
                                float *packed) {
  if (q->step == 1)
    for (int64_t r = i; r < i + rows; r++, packed += depth)
      ch_pack_copy(depth, (const ch_bf16 *)q->a + r * q->row + first, packed, 1);
  else
    for (int64_t begin = 0; begin < rows; begin += CH_PACK_GROUP, packed += depth * CH_PACK_GROUP)
      for (int64_t p = 0; p < depth; p++)
        ch_pack_step(q, q->a, q->step, first + p, i + begin, ch_min(rows - begin, CH_PACK_GROUP),
                     packed + p * CH_PACK_GROUP);
}

#endif
