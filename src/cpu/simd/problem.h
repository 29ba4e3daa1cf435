/* A product as the tiles of the own one see it. */
#ifndef CH_CPU_SIMD_PROBLEM_H
#define CH_CPU_SIMD_PROBLEM_H

#include <stdint.h>

#include "cpu/product.h"

/* Tiles multiply these: floats, bf16 that were widened to floats, or pairs of bf16, a pair in the place of a float. */
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
  int in_panels; /* b is packed: panel after panel, each of all k steps */
  int streams;   /* the output goes past the caches */
  float *c;
  int64_t ldc;
  float alpha;
} ch_problem;

static inline int64_t ch_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ch_round_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }
static inline int64_t ch_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* A B^T either has B transposed into panels, or is (B A^T)^T: then A is, and so is the output, once for each slice of
 * the depth. Whether that is the better way: `most` is the depth of a slice then, out of `steps`. */
static inline int ch_better_swapped(const ch_product *p, int64_t steps, int64_t max) {
  enum {
    MAX_SWAPPED = 512, /* columns of B at most when it is in panels as a whole */
    PACK_COST = 1,     /* half cycles: to transpose an element into a panel, */
    SCATTER_COST = 2   /* to write one of a transposed output */
  };
  if (!p->trans_b || p->trans_a || p->panels || p->m > MAX_SWAPPED) return 0;
  double m = (double)p->m, n = (double)(p->columns ? p->columns : p->n), k = (double)steps,
         slices = (double)ch_ceil_div(steps, max);
  return m * k * PACK_COST + m * n * slices * SCATTER_COST < n * k * PACK_COST;
}

#endif
