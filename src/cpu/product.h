/* A product of two matrices on one thread, as data: what kernels of every kind are given. */
#ifndef CH_CPU_PRODUCT_H
#define CH_CPU_PRODUCT_H

#include <stdint.h>

/* C[m,n] (= or +=) alpha op(A)[m,k] op(B)[k,n], row-major; with trans_a A is stored [k,m], with trans_b B is stored
 * [n,k]. */
typedef struct ch_product {
  int trans_a, trans_b, accumulate;
  int large;  /* c is too large for the caches: it need not stay there */
  int bf16;   /* a and b point to ch_bf16 instead of float */
  int by_row; /* a row's bits must not depend on how many there are */
  int rounds; /* of bf16, but b still points to floats */
  int64_t m, n, k;
  int64_t depth;   /* threaded/product.h: so much of k at a time, as if each were a product that is added; 0: all */
  int64_t columns; /* columns of the whole product, which decide how the depth is sliced; 0: n */
  const void *a, *b;
  const float *panels; /* B packed before (threaded/product.h), or NULL */
  int64_t lda, ldb, ldc;
  float *c;
  float alpha;
  const struct ch_activate_args
      *activate;   /* activation applied to C (op/op.h), or NULL; with c NULL only its output is stored */
  int64_t element; /* index of C's first element in the activation's arrays */
} ch_product;

/* Columns of packed panels come in whole multiples of this, which every kernel's tiles divide. */
enum { CH_PANEL_COLUMNS = 64 };

/* Whether a product of bf16 can be made of pairs of elements that follow each other in its depth: those that lie side
 * by side in a row are read where they are. A function of the shape alone, and not of the number of rows. (A
 * transposed left operand of one column looks like such a row, whatever its depth.) */
static inline int ch_product_in_pairs(const ch_product *p) {
  int left = p->trans_a ? p->lda > 1 : p->k % 2 == 0 && p->lda % 2 == 0;
  return left && (!p->trans_b || (p->k % 2 == 0 && p->ldb % 2 == 0));
}

/* Scratch that every thread needs for products, in floats and in bytes: for packed operands, no more than the cache of
 * a core holds; and after them for rows of A where B takes all of it. */
enum {
  CH_PRODUCT_BUFFER = 1 << 18,
  CH_PRODUCT_MORE = 1 << 16,
  CH_PRODUCT_SCRATCH = (CH_PRODUCT_BUFFER + CH_PRODUCT_MORE) * 4
};

/* Length of a slice of the inner dimension: equal slices of whole CH_PRODUCT_STEPs, none above `most`, so that a panel
 * and its rows stay in the cache. Sums of slices are added in order, so bits depend on the slicing, and kernels with
 * the same slicing give the same bits. */
enum { CH_PRODUCT_DEPTH = 512, CH_PRODUCT_STEP = 16 };
static inline int64_t ch_product_slice(int64_t depth, int64_t max) {
  if (depth <= max) return depth;
  int64_t slices = (depth + max - 1) / max, each = (depth + slices - 1) / slices;
  return (each + CH_PRODUCT_STEP - 1) / CH_PRODUCT_STEP * CH_PRODUCT_STEP;
}

#endif
