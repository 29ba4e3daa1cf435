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

/* Pieces that a product is to be cut into, if it is large enough. Alone: enough to balance 16 threads, few enough to
 * keep them large. One of many experts: so that a full one does not leave the other threads waiting. */
enum { CH_PIECES = 32, CH_PIECES_OF_EXPERT = 8 };

/* Runs independent products on all threads, each cut into about `wanted` pieces by a rule of its own shape. In the
 * counting run `products` is not read (product_pieces.c). */
void ch_products_run(ch_exec *x, int count, double wanted, const ch_product *products);

/* An operand of `count` elements rounded to bf16, in scratch that the caller releases, where `rounded` does not hold it
 * already. */
const ch_bf16 *ch_rounded_operand(ch_exec *x, const float *array, const ch_bf16 *rounded, int64_t count);

#endif
