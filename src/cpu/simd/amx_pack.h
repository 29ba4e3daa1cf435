/* Packs operands of a bf16 product as blocks for tiles: 32 lines (rows of the left operand, columns of the right one)
 * by 16 pairs of elements adjacent in depth. Elements beyond the operand's edge are 0. */
#ifndef CH_CPU_SIMD_AMX_PACK_H
#define CH_CPU_SIMD_AMX_PACK_H

#include <string.h>

#include "base/real.h"
#include "cpu/simd/amx.h"
#include "cpu/simd/pack.h"

/* Element p of line l is at l * ld + p if `along` (lines are contiguous), else at p * ld + l. */
typedef struct {
  const ch_bf16 *at;
  int64_t ld, lines, depth;
  int along;
} ch_amx_operand;

/* y[32 lines][16 pairs] of an operand with contiguous lines. */
static inline void ch_amx_pack_lines(const ch_amx_operand *o, int64_t line, int64_t p, float *y) {
  int64_t lines = ch_min(o->lines - line, CH_AMX_EDGE), depth = ch_min(o->depth - p, 2 * CH_AMX_PAIRS);
  const ch_bf16 *x = o->at + line * o->ld + p;
  if (lines < CH_AMX_EDGE || depth < 2 * CH_AMX_PAIRS) memset(y, 0, CH_AMX_BLOCK * sizeof *y);
  for (int64_t l = 0; l < lines; l++, x += o->ld, y += CH_AMX_PAIRS)
    if (depth == 2 * CH_AMX_PAIRS)
      memcpy(y, x, CH_AMX_PAIRS * sizeof *y);
    else
      memcpy(y, x, (size_t)depth * sizeof *x);
}

/* y[16 pairs][32 lines] of an operand with contiguous steps. */
static inline void ch_amx_pack_steps(const ch_amx_operand *o, int64_t line, int64_t p, float *y) {
  int64_t lines = ch_min(o->lines - line, CH_AMX_EDGE), depth = ch_min(o->depth - p, 2 * CH_AMX_PAIRS);
  const ch_bf16 *x = o->at + p * o->ld + line;
  if (lines < CH_AMX_EDGE || depth < 2 * CH_AMX_PAIRS) memset(y, 0, CH_AMX_BLOCK * sizeof *y);
  for (int64_t i = 0; i < depth; i += 2, x += 2 * o->ld, y += CH_AMX_EDGE)
    ch_pack_pairs(lines, x, i + 1 < depth ? x + o->ld : NULL, y);
}

/* Packs the block at line `line`, depth p: [lines][pairs] for the left operand, or [pairs][lines] for the right one. */
static inline void ch_amx_pack(const ch_amx_operand *o, int64_t line, int64_t p, int lines_of_pairs, float *y) {
  float turned[CH_AMX_BLOCK];
  float *as_it_stands = o->along == lines_of_pairs ? y : turned;
  if (o->along)
    ch_amx_pack_lines(o, line, p, as_it_stands);
  else
    ch_amx_pack_steps(o, line, p, as_it_stands);
  if (as_it_stands == y) return;
  if (o->along)
    ch_transpose(CH_AMX_EDGE, CH_AMX_PAIRS, turned, CH_AMX_PAIRS, y, CH_AMX_EDGE);
  else
    ch_transpose(CH_AMX_PAIRS, CH_AMX_EDGE, turned, CH_AMX_EDGE, y, CH_AMX_PAIRS);
}

#endif
