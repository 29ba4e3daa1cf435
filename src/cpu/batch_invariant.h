/* Products of which no row depends on the other rows, bit for bit: every element is one sum in an order that its row,
 * its column and the inner dimension decide. They are made for the few rows of a step of generation, where reading B is
 * what takes the time. Many rows go to the own product (simd/product.h), which adds in the same order. */
#ifndef CH_CPU_BATCH_INVARIANT_H
#define CH_CPU_BATCH_INVARIANT_H

#include "cpu/product.h"
#include "cpu/simd/simd.h"
#include "op/op.h"

/* Pieces of columns are multiples of this, or of any width if B is transposed; so the cut changes no bit. */
enum { CH_INVARIANT_COLUMNS = 64 };

/* Of one row and B that is not transposed pieces are best as wide as this. */
enum { CH_INVARIANT_BROAD = 512 };

enum { CH_INVARIANT_WORK = 1 << 15 }; /* multiplications that are worth waking a thread for */
static inline int ch_invariant_threads(const ch_exec *x, int64_t work) {
  return ch_threads_for(x, work, CH_INVARIANT_WORK);
}

/* Runs p on the calling thread: trans_a is 0, a holds floats, and `bf16` is about b alone (simd/batch_invariant.c). */
CH_SIMD_DECLARE(void, ch_invariant_product, (const ch_product *p));

#if defined(CH_SIMD_PAIRS)
/* The same with bf16 in a too, multiplied in pairs: for products that ch_product_in_pairs allows. */
void CH_SIMD_PAIRS(ch_invariant_pairs)(const ch_product *p);
#endif

/* gemm and expert_gemm under x->batch_invariant (threaded/batch_invariant.c); not for products of transposed A. */
void ch_invariant_gemm(ch_exec *x, const ch_gemm_args *g);
void ch_invariant_expert_gemm(ch_exec *x, const ch_expert_gemm_args *g);

#endif
