/* AMX tiles: eight registers of 16 rows of 64 bytes, and an instruction that multiplies two bf16 tiles and adds to a
 * float tile. Four tiles hold a square of 32 x 32 sums of the output, two hold rows of the left operand, two hold
 * columns of the right operand. The includer may define the instructions as functions (tests/cpu/amx_emulated.c). */
#ifndef CH_CPU_SIMD_AMX_H
#define CH_CPU_SIMD_AMX_H

#include <stdint.h>

#include "cpu/simd/tile.h"

/* CH_AMX_ROWS: rows per tile, and columns of floats. CH_AMX_EDGE: rows and columns of a square of four tiles.
 * CH_AMX_PAIRS: pairs of bf16 per step (depth 32). CH_AMX_BLOCK: size of one operand of a step, in floats. */
enum { CH_AMX_ROWS = 16, CH_AMX_EDGE = 32, CH_AMX_PAIRS = 16, CH_AMX_BLOCK = CH_AMX_EDGE * CH_AMX_PAIRS };

/* Strides of the left operand, in bytes: between rows, between steps, and between the two groups of 16 rows. */
typedef struct {
  const char *at;
  int64_t row, step, second;
} ch_amx_left;

/* Memory to prefetch: some cache lines per step, `left` in all. Each row has `lines` lines; the first row begins at
 * `at`, the next one a stride in bytes later. */
typedef struct {
  const char *at;
  int64_t row, lines, line, each, left;
} ch_amx_ahead;

/* Tile state is active only between these two calls, so context switches and forks elsewhere need not save it. */
static inline void ch_amx_begin(void) {
  struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } tiles = {.palette = 1};
  for (int i = 0; i < 8; i++) tiles.bytes[i] = 64, tiles.rows[i] = CH_AMX_ROWS;
  __asm__ volatile("" : : "r"(&tiles) : "memory"); /* the next instruction reads 64 bytes; gcc 12 assumes 8 */
  _tile_loadconfig(&tiles);
}
static inline void ch_amx_end(void) { _tile_release(); }

CH_TILE_INLINE void ch_amx_fetch(ch_amx_ahead *f) {
  for (int64_t i = 0; i < f->each && f->left; i++, f->left--) {
    __builtin_prefetch(f->at + 64 * f->line, 0, 2);
    if (++f->line == f->lines) f->line = 0, f->at += f->row;
  }
}

/* Adds `steps` steps to the square's sums; b: blocks [pairs][columns] of the right operand. Compile-time constants:
 * without `tall` the square has 16 rows, without `wide` 16 columns; with `packed` rows are loaded from L2 without
 * displacing the right operand from L1. */
CH_TILE_INLINE void ch_amx_steps(int tall, int wide, int packed, int64_t steps, const ch_amx_left *a, const float *b,
                                 ch_amx_ahead *ahead) {
  const int64_t row = CH_AMX_EDGE * sizeof *b;
  const char *at = a->at;
  ch_amx_ahead next = *ahead;
  __asm__ volatile("" : : : "memory"); /* compiler barrier: gcc 12 does not know that tile loads read memory */
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (; steps; steps--, at += a->step, b += CH_AMX_BLOCK) {
    _tile_loadd(6, b, row);
    ch_amx_fetch(&next);
    if (packed)
      _tile_stream_loadd(4, at, a->row);
    else
      _tile_loadd(4, at, a->row);
    if (wide) _tile_loadd(7, b + CH_AMX_ROWS, row);
    _tile_dpbf16ps(0, 4, 6);
    if (tall && packed) _tile_stream_loadd(5, at + a->second, a->row);
    if (tall && !packed) _tile_loadd(5, at + a->second, a->row);
    if (wide) _tile_dpbf16ps(1, 4, 7);
    if (tall) _tile_dpbf16ps(2, 5, 6);
    if (tall && wide) _tile_dpbf16ps(3, 5, 7);
  }
  *ahead = next;
}

/* Stores the square's sums, in rows `ldc` floats apart. */
CH_TILE_INLINE void ch_amx_store(int tall, int wide, float *c, int64_t ldc) {
  const int64_t row = ldc * (int64_t)sizeof *c;
  _tile_stored(0, c, row);
  if (wide) _tile_stored(1, c + CH_AMX_ROWS, row);
  if (tall) _tile_stored(2, c + CH_AMX_ROWS * ldc, row);
  if (tall && wide) _tile_stored(3, c + CH_AMX_ROWS * ldc + CH_AMX_ROWS, row);
}

#endif
