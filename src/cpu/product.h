/* Description of a matrix product on one thread, the argument of all kernels. */
#ifndef CH_CPU_PRODUCT_H
#define CH_CPU_PRODUCT_H

#include <stdint.h>

/* C[m,n] (= or +=) alpha op(A)[m,k] op(B)[k,n], row-major; with trans_a A is stored [k,m], with trans_b B is stored
 * [n,k]. */
typedef struct ch_product {
  int trans_a, trans_b, accumulate;
  int large;  /* c would not stay in the caches: stores bypass them */
  int bf16;   /* a and b point to ch_bf16 instead of float */
  int by_row; /* a row's bits must not depend on m */
  int rounds; /* b is to be rounded to bf16 but points to floats */
  int64_t m, n, k;
  int64_t depth;   /* slices of k, each added like a separate product (threaded/product.h); 0: no slices */
  int64_t columns; /* columns of the whole product, which determine the slices; 0: n */
  const void *a, *b;
  const float *panels; /* B already packed (threaded/product.h), or NULL */
  int64_t lda, ldb, ldc;
  float *c;
  float alpha;
  const struct ch_activate_args
      *activate;   /* activation applied to C (op/op.h), or NULL; with c NULL only its output is stored */
  int64_t element; /* index of C's first element in the activation's arrays */
} ch_product;

/* Width of packed panels is a multiple of this; every kernel's tile width divides it. */
enum { CH_PANEL_COLUMNS = 64 };

/* Whether a bf16 product can multiply pairs of elements adjacent in depth, read in place if they are adjacent in
 * memory. Depends on the shape but not on the number of rows. (A transposed left operand of one column is excluded: its
 * elements are adjacent, so it would be read in place, but its depth may be odd.) */
static inline int ch_product_in_pairs(const ch_product *p) {
  int left = p->trans_a ? p->lda > 1 : p->k % 2 == 0 && p->lda % 2 == 0;
  return left && (!p->trans_b || (p->k % 2 == 0 && p->ldb % 2 == 0));
}

/* Scratch per thread for products, in floats and in bytes: packed operands, sized to a core's cache, followed by rows
 * of A in case B fills the first part. */
enum {
  CH_PRODUCT_BUFFER = 1 << 18,
  CH_PRODUCT_MORE = 1 << 16,
  CH_PRODUCT_SCRATCH = (CH_PRODUCT_BUFFER + CH_PRODUCT_MORE) * 4
};

/* Length of a slice of the inner dimension: equal slices of whole CH_PRODUCT_STEPs, at most `max`, so that a panel and
 * its rows stay in the cache. Sums of slices are added in order, so bits depend on the slicing, and kernels with the
 * same slicing give the same bits. */
enum { CH_PRODUCT_DEPTH = 512, CH_PRODUCT_STEP = 16 };
static inline int64_t ch_product_slice(int64_t depth, int64_t max) {
  if (depth <= max) return depth;
  int64_t slices = (depth + max - 1) / max, each = (depth + slices - 1) / slices;
  return (each + CH_PRODUCT_STEP - 1) / CH_PRODUCT_STEP * CH_PRODUCT_STEP;
}

#endif
