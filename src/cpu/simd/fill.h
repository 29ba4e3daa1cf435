/* The vectorised ops that are no products: what each file of src/cpu/simd puts into the table, by instruction set. */
#ifndef CH_CPU_SIMD_FILL_H
#define CH_CPU_SIMD_FILL_H

#include "cpu/counts.h"
#include "cpu/simd/simd.h"
#include "op/op.h"

CH_SIMD_DECLARE(void, ch_fill_gelu, (ch_ops * ops));      /* activate */
CH_SIMD_DECLARE(void, ch_fill_pointwise, (ch_ops * ops)); /* softmax, sigmoid, sumsq, round_bf16, widen_bf16 */
CH_SIMD_DECLARE(void, ch_fill_norm, (ch_ops * ops));      /* rmsnorm */
CH_SIMD_DECLARE(void, ch_fill_gather, (ch_ops * ops));    /* gather, combine, embedding */
CH_SIMD_DECLARE(void, ch_fill_select, (ch_ops * ops));    /* select */
CH_SIMD_DECLARE(void, ch_fill_exchange, (ch_ops * ops));  /* exchange */
CH_SIMD_DECLARE(void, ch_fill_dykstra, (ch_ops * ops));   /* dykstra */
CH_SIMD_DECLARE(void, ch_fill_adafactor, (ch_ops * ops)); /* adafactor */
CH_SIMD_DECLARE(void, ch_fill_adamw, (ch_ops * ops));     /* adamw */

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
