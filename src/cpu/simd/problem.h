/* A product in the normalized form that tiles of choir's own product compute. */
#ifndef CH_CPU_SIMD_PROBLEM_H
#define CH_CPU_SIMD_PROBLEM_H

#include <stdint.h>

#include "cpu/product.h"

/* Elements that tiles multiply: floats, bf16 widened to floats, or pairs of bf16 (a pair has the size of a float). */
typedef enum { CH_FLOATS, CH_WIDENED, CH_PAIRS } ch_factors;

/* C[m,n] (+)= alpha A[m,k] B[k,n] with fixed roles. A, the left operand, has row r, step p at element r * row + p *
 * step. ldb is the distance between B's rows, or between its columns if B is transposed; the same holds for C. With
 * bf16, a pair is two successive elements of the depth, and k counts pairs. Adjacent pairs (A with step 1, B
 * transposed) are read directly, and strides count pairs, too. Otherwise a pair combines two rows; an odd depth lacks
 * the last row. */
typedef struct {
  int64_t m, n, k;
  ch_factors factors;
  int odd;
  const void *a, *b;
  int64_t row, step, ldb;
  int b_transposed, c_transposed, add;
  int in_panels; /* b is packed: consecutive panels, each with all k steps */
  int streams;   /* the output bypasses the caches */
  float *c;
  int64_t ldc;
  float alpha;
} ch_problem;

static inline int64_t ch_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ch_round_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }
static inline int64_t ch_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Whether to compute A B^T as (B A^T)^T. A B^T packs B transposed into panels; (B A^T)^T packs A instead and transposes
 * the output once per slice of the depth. max: the depth of such a slice, out of `steps`. */
static inline int ch_better_swapped(const ch_product *p, int64_t steps, int64_t max) {
  enum {
    MAX_SWAPPED = 512, /* max columns of B if B is packed whole */
    PACK_COST = 1,     /* in half cycles: transposing an element into a panel, */
    SCATTER_COST = 2   /* writing an element of a transposed output */
  };
  if (!p->trans_b || p->trans_a || p->panels || p->m > MAX_SWAPPED) return 0;
  double m = (double)p->m, n = (double)(p->columns ? p->columns : p->n), k = (double)steps,
         slices = (double)ch_ceil_div(steps, max);
  return m * k * PACK_COST + m * n * slices * SCATTER_COST < n * k * PACK_COST;
}

#endif
