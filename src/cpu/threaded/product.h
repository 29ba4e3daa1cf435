/* One-thread matrix products, the tasks of every fast product: gemm, experts, attention and the head split their work
 * into these and distribute them to threads. Float, or bf16 inputs with float accumulators and output. */
#ifndef CH_CPU_THREADED_PRODUCT_H
#define CH_CPU_THREADED_PRODUCT_H

#include "cpu/product.h"
#include "op/op.h"

/* Runs one product on the calling thread, with CH_PRODUCT_SCRATCH bytes of scratch, aligned to a cache line. The choice
 * of kernel depends only on the shape. */
void ch_product_run(const ch_product *p, void *scratch);

/* Chooses the kernels of bf16 products; call it before the first one. AMX tiles if the CPU has them and the product
 * need not be batch-invariant; otherwise pairs if the CPU is faster with them, else widening to floats. */
void ch_product_prepare(void);

/* Nonzero if p is multiplied in pairs of bf16; call ch_product_prepare first. */
int ch_product_takes_pairs(const ch_product *p);

/* Packs B once for several products of p's shape with any m, with the same bits. Panels: [n rounded up to
 * CH_PANEL_COLUMNS, steps] floats; 0 steps if the kernel does not accept packed B. */
int64_t ch_product_steps(const ch_product *p);
void ch_product_pack(const ch_product *p, float *panels);

/* The product of a gemm with its inputs unrounded, and the product of expert i without A and B. For an array
 * [rows,width]: its stride (ld 0: width), and the number of elements from the first to the last. */
ch_product ch_product_of(const ch_gemm_args *g);
ch_product ch_expert_product(const ch_expert_gemm_args *g, int i);
static inline int64_t ch_stride(int64_t ld, int64_t width) { return ld ? ld : width; }
static inline int64_t ch_span(int64_t rows, int64_t width, int64_t ld) {
  return rows > 0 ? (rows - 1) * ld + width : 0;
}

/* Number of rows of all experts; max_rows in the counting run. */
static inline int64_t ch_expert_rows(const ch_exec *x, const ch_expert_gemm_args *g) {
  return ch_counting(x) ? g->max_rows : g->begin[g->experts];
}

/* How products are split (product_pieces.c): into at most `pieces` pieces, the smallest power of two such that no piece
 * costs more than `smallest`. A single product: enough pieces to balance 16 threads, few enough to keep them large; a
 * small product is still split in two for two threads. With many experts, a full expert is split so that other threads
 * do not wait for it; small experts are not split. */
typedef struct {
  double pieces, smallest;
  int64_t output;      /* max elements per piece, so that the activation finds it in the core's cache; 0: no limit */
  int64_t output_size; /* scratch elements for a piece without an output array */
  int64_t rounded;     /* scratch elements to round B in blocks, at least 64 columns; 0: B is rounded as a whole */
} ch_tiling;
static const ch_tiling ch_cut_alone = {.pieces = 32, .smallest = 10e6}, ch_cut_expert = {.pieces = 8, .smallest = 40e6};

/* Runs independent products on all threads; each is split depending only on its own shape. The counting run does not
 * read `products`. */
void ch_products_run(ch_exec *x, int count, ch_tiling cutting, const ch_product *products);

/* An operand [count] rounded to bf16: `rounded` if it is not NULL, otherwise in scratch that the caller releases. */
const ch_bf16 *ch_rounded_operand(ch_exec *x, const float *array, const ch_bf16 *rounded, int64_t count);

#endif
