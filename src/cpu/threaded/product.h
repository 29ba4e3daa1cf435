/* One-thread matrix products, the unit of work of every fast product: gemm, experts, attention and the head cut their
 * work into these and give them to threads. Float, or bf16 inputs with float accumulators and output. */
#ifndef CH_CPU_THREADED_PRODUCT_H
#define CH_CPU_THREADED_PRODUCT_H

#include "cpu/product.h"
#include "op/op.h"

/* Runs one product on the calling thread, with CH_PRODUCT_SCRATCH bytes of scratch, aligned like a cache line. Which
 * kernel runs is a function of the shape alone. */
void ch_product_run(const ch_product *p, void *scratch);

/* Chooses the kernels of bf16 products; to be called before the first one. They are multiplied by AMX's tiles where the
 * CPU has these and a row's bits may depend on its company; else in pairs where the CPU does that faster, or widened to
 * floats. */
void ch_product_prepare(void);

/* Nonzero when p is made of pairs of bf16, after ch_product_prepare. */
int ch_product_takes_pairs(const ch_product *p);

/* B packed for several products of p's shape, whatever their m: they get the same bits, and spare themselves the work.
 * Panels take [n rounded up to CH_PANEL_COLUMNS, steps] floats; there are 0 steps where kernels pack by themselves. */
int64_t ch_product_steps(const ch_product *p);
void ch_product_pack(const ch_product *p, float *panels);

/* The product that a gemm asks for, its inputs as they are, and that of expert i, except for A and B. Of a [rows,width]
 * array the stride (ld 0: width), and the elements from the first to the last. */
ch_product ch_product_of(const ch_gemm_args *g);
ch_product ch_expert_product(const ch_expert_gemm_args *g, int i);
static inline int64_t ch_stride(int64_t ld, int64_t width) { return ld ? ld : width; }
static inline int64_t ch_span(int64_t rows, int64_t width, int64_t ld) {
  return rows > 0 ? (rows - 1) * ld + width : 0;
}

/* Rows of all experts; in the counting run as many as there may be. */
static inline int64_t ch_expert_rows(const ch_exec *x, const ch_expert_gemm_args *g) {
  return ch_counting(x) ? g->max_rows : g->begin[g->experts];
}

/* How products are cut (product_pieces.c): into at most so many pieces, the least power of two of which none costs more
 * than `smallest`. One that runs alone: enough pieces to balance 16 threads, few enough to keep them large; a small one
 * is still cut in two, or the other threads would wait. A product of one of many experts is cut so that a
 * full expert does not leave the other threads waiting; small experts are shared out whole. */
typedef struct {
  double pieces, smallest;
  int64_t output;      /* most elements of a piece, so that an activation finds it in the core's cache; 0: no limit */
  int64_t output_size; /* scratch elements for a piece that is not stored elsewhere */
  int64_t rounded;     /* scratch elements to round part of B at a time, at least 64 columns; 0: B is rounded whole */
} ch_tiling;
static const ch_tiling ch_cut_alone = {.pieces = 32, .smallest = 10e6}, ch_cut_expert = {.pieces = 8, .smallest = 40e6};

/* Runs independent products on all threads, each cut by a rule of its own shape. In the counting run `products` is not
 * read. */
void ch_products_run(ch_exec *x, int count, ch_tiling cutting, const ch_product *products);

/* An operand of `count` elements rounded to bf16, in scratch that the caller releases, where `rounded` does not hold it
 * already. */
const ch_bf16 *ch_rounded_operand(ch_exec *x, const float *array, const ch_bf16 *rounded, int64_t count);

#endif
