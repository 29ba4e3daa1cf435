/* The vectorized ops other than products, as ch_simd_NAME per instruction set. */
#ifndef CH_CPU_SIMD_FILL_H
#define CH_CPU_SIMD_FILL_H

#include "cpu/define.h"
#include "cpu/simd/simd.h"
#include "op/op.h"

#define CH_SIMD_OPS(op)                                                                                                \
  op(softmax) op(softmax_backward) op(sigmoid) op(sumsq) op(round_bf16) op(widen_bf16) op(activate)                    \
      op(activate_backward) op(rmsnorm) op(rmsnorm_backward) op(gather) op(combine) op(combine_backward) op(embedding) \
          op(embedding_backward) op(select) op(exchange) op(adafactor) op(adamw)
#define CH_SIMD_OP_DECLARE(op) CH_SIMD_DECLARE(void, ch_simd_##op, (ch_exec * x, const ch_args_of_##op *a));
CH_SIMD_OPS(CH_SIMD_OP_DECLARE)

/* See cpu/define.h. */
#define CH_SIMD_SCRATCH_OP(op) CH_SCRATCH_OP(CH_SIMD(ch_simd_##op), op)
#define CH_SIMD_OP(op) CH_PLAIN_OP(CH_SIMD(ch_simd_##op), op)

/* activate, or activate_backward if a has dx or dx16, on elements first .. first+count-1. c: NULL, or the output of a
 * product for these elements, which replaces x (u of a gated activation; dy in backward); x16 is then written. */
CH_SIMD_DECLARE(void, ch_activate_elements, (const ch_activate_args *a, const float *c, int64_t first, int64_t count));
typedef void ch_activate_run(const ch_activate_args *a, const float *c, int64_t first, int64_t count);

/* y [rows,columns] = x rounded to bf16; rows of x are ldx apart. */
CH_SIMD_DECLARE(void, ch_round_matrix, (int64_t rows, int64_t columns, const float *x, int64_t ldx, ch_bf16 *y));

/* Elementwise loops are split into blocks of this many elements (64 KiB of float: three arrays stay in a core's cache).
 * A multiple of every vector length, so that an element's lane depends only on its index. */
enum { CH_PIECE = 16384 };

/* Number of blocks of `size` that cover `count`. */
static inline int64_t ch_pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

/* End of block p of `size`. */
static inline int64_t ch_piece_end(int64_t p, int64_t count, int64_t size) {
  return (p + 1) * size < count ? (p + 1) * size : count;
}

#endif
