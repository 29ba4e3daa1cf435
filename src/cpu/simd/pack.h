/* Operands of a product copied to where its tiles read them: side by side, as floats. */
#ifndef CH_CPU_SIMD_PACK_H
#define CH_CPU_SIMD_PACK_H

#include "base/real.h"
#include "cpu/simd/tile.h"
#include "cpu/simd/transpose.h"

/* Rows of A that are packed together: whole tiles of them, and whole vectors. */
enum { CH_PACK_GROUP = 8 * CH_TILE_ROWS };

/* C[m,n] (+)= alpha A[m,k] B[k,n] with roles given out: A is the left operand, whose row r, step p is element
 * r * row + p * step; B's rows stand at ldb, or its columns do where it is transposed; C too. */
typedef struct {
  int64_t m, n, k;
  int bf16; /* what a and b point to; else floats */
  const void *a, *b;
  int64_t row, step, ldb;
  int b_transposed, c_transposed, add;
  int streams; /* the output goes past the caches */
  float *c;
  int64_t ldc;
  float alpha;
} ch_problem;

static inline int64_t ch_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* y[0..count-1] = elements of x from `at` on. */
CH_TILE_INLINE void ch_pack_copy(int64_t count, const void *x, int64_t at, float *y, int bf16) {
  int64_t whole = count / CH_LANES * CH_LANES;
  const ch_bf16 *half = (const ch_bf16 *)x + at;
  const float *full = (const float *)x + at;
  for (int64_t i = 0; i < whole; i += CH_LANES) ch_store(y + i, bf16 ? ch_load_bf16(half + i) : ch_load(full + i));
  for (int64_t i = whole; i < count; i++) y[i] = bf16 ? ch_bf16_value(half[i]) : full[i];
}

/* y[p,c] = x[c,p] for `rows` rows of x, from element `at` on. */
CH_TILE_INLINE void ch_pack_transposed(int64_t rows, int64_t columns, const void *x, int64_t at, int64_t ldx, float *y,
                                       int bf16) {
  enum { PART = 16 };
  float part[CH_TILE_COLUMNS * PART];
  if (!bf16) {
    ch_transpose(rows, columns, (const float *)x + at, ldx, y, CH_TILE_COLUMNS);
    return;
  }
  for (int64_t p = 0; p < columns; p += PART) {
    int64_t count = ch_least(columns - p, PART);
    for (int64_t c = 0; c < rows; c++) ch_pack_copy(count, x, at + c * ldx + p, part + c * PART, 1);
    ch_transpose(rows, count, part, PART, y + p * CH_TILE_COLUMNS, CH_TILE_COLUMNS);
  }
}

/* Columns of B from j, `depth` rows from first, as [depth, CH_TILE_COLUMNS], filled up with zeros. */
CH_TILE_INLINE void ch_fill_panel(const ch_problem *q, int64_t j, int64_t first, int64_t depth, float *panel,
                                  int bf16) {
  int64_t columns = ch_least(q->n - j, CH_TILE_COLUMNS);
  if (q->b_transposed)
    ch_pack_transposed(columns, depth, q->b, j * q->ldb + first, q->ldb, panel, bf16);
  else
    for (int64_t p = 0; p < depth; p++)
      ch_pack_copy(columns, q->b, (first + p) * q->ldb + j, panel + p * CH_TILE_COLUMNS, bf16);
  for (int64_t p = 0; p < depth && columns < CH_TILE_COLUMNS; p++)
    for (int64_t c = columns; c < CH_TILE_COLUMNS; c++) panel[p * CH_TILE_COLUMNS + c] = 0;
}

static inline void ch_pack_panel(const ch_problem *q, int64_t j, int64_t first, int64_t depth, float *panel) {
  if (q->bf16)
    ch_fill_panel(q, j, first, depth, panel, 1);
  else
    ch_fill_panel(q, j, first, depth, panel, 0);
}

/* Rows of A from i. Where they stand one after the other they stay so, [rows, depth]. Where steps are far apart, a tile
 * that read them in place would touch a line of another page for every step: they go into groups of CH_PACK_GROUP, each
 * [depth, CH_PACK_GROUP]; whole lines are read, and the tiles of a group share them. */
CH_TILE_INLINE void ch_fill_left(const ch_problem *q, int64_t i, int64_t rows, int64_t first, int64_t depth,
                                 float *packed, int bf16) {
  int64_t from = i * q->row + first * q->step;
  if (q->step == 1)
    for (int64_t r = 0; r < rows; r++) ch_pack_copy(depth, q->a, from + r * q->row, packed + r * depth, bf16);
  else
    for (int64_t begin = 0; begin < rows; begin += CH_PACK_GROUP, packed += depth * CH_PACK_GROUP)
      for (int64_t p = 0; p < depth; p++)
        ch_pack_copy(ch_least(rows - begin, CH_PACK_GROUP), q->a, from + begin + p * q->step,
                     packed + p * CH_PACK_GROUP, bf16);
}

static inline void ch_pack_left(const ch_problem *q, int64_t i, int64_t rows, int64_t first, int64_t depth,
                                float *packed) {
  if (q->bf16)
    ch_fill_left(q, i, rows, first, depth, packed, 1);
  else
    ch_fill_left(q, i, rows, first, depth, packed, 0);
}

#endif
