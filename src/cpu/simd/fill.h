/* The vectorised ops that are no products, as ch_simd_NAME by instruction set. */
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

/* activate or activate_backward (if a has dx or dx16) of the elements from `first` on, where c, if it is not NULL,
 * holds what a product has just made of them: x, of a gate u, or in backward dy. x16 is written then. */
CH_SIMD_DECLARE(void, ch_activate_elements, (const ch_activate_args *a, const float *c, int64_t first, int64_t count));
typedef void ch_activate_run(const ch_activate_args *a, const float *c, int64_t first, int64_t count);

/* y [rows,columns] = x rounded, whose rows are ldx apart. */
CH_SIMD_DECLARE(void, ch_round_matrix, (int64_t rows, int64_t columns, const float *x, int64_t ldx, ch_bf16 *y));

/* Elementwise loops are cut into pieces of this many elements (64 KiB of float: three arrays stay in a core's cache).
 * A multiple of every vector length, so that an element's place in its vector depends on its index alone. */
enum { CH_PIECE = 16384 };

/* Pieces of `size` that cover `count`. */
static inline int64_t ch_pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

/* Where piece p of `size` ends. */
static inline int64_t ch_piece_end(int64_t p, int64_t count, int64_t size) {
  return (p + 1) * size < count ? (p + 1) * size : count;
}

#endif
