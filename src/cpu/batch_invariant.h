/* Batch-invariant products: a row's bits do not depend on the other rows, because the summation order of an element
 * depends only on its row, its column and the inner dimension. Optimized for the few rows of a generation step, where
 * reading B dominates. Many rows use choir's own product (simd/product.h), which adds in the same order. */
#ifndef CH_CPU_BATCH_INVARIANT_H
#define CH_CPU_BATCH_INVARIANT_H

#include "cpu/product.h"
#include "cpu/simd/simd.h"
#include "op/op.h"

/* Blocks of columns are multiples of this width, or have any width if B is transposed, so the split changes no bit. */
enum { CH_INVARIANT_COLUMNS = 64 };

/* Preferred block width for one row and B not transposed. */
enum { CH_INVARIANT_BROAD = 512 };

enum { CH_INVARIANT_WORK = 1 << 15 }; /* min multiplications per thread */
static inline int ch_invariant_threads(const ch_exec *x, int64_t work) {
  return ch_threads_for(x, work, CH_INVARIANT_WORK);
}

/* Runs p on the calling thread. Requires trans_a = 0 and float a; here `bf16` is the type of b only
 * (simd/batch_invariant.c). */
CH_SIMD_DECLARE(void, ch_invariant_product, (const ch_product *p));

#if defined(CH_SIMD_PAIRS)
/* ch_invariant_product with bf16 in a too, multiplied in pairs; requires ch_product_in_pairs. */
void CH_SIMD_PAIRS(ch_invariant_pairs)(const ch_product *p);
#endif

/* gemm and expert_gemm under x->batch_invariant (threaded/batch_invariant.c); not for products of transposed A. */
void ch_invariant_gemm(ch_exec *x, const ch_gemm_args *g);
void ch_invariant_expert_gemm(ch_exec *x, const ch_expert_gemm_args *g);

#endif
