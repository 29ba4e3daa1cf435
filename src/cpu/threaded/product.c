#include "cpu/threaded/product.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>

#include "base/machine.h"
#include "base/signals.h"
#include "cpu/simd/product.h"

void ch_product_begin(void) { omp_set_num_threads(1); }

static float element(const ch_product *p, const void *array, int64_t i) {
  return p->bf16 ? ch_bf16_value(((const ch_bf16 *)array)[i]) : ((const float *)array)[i];
}

/* For products without inner dimension, and for when oneDNN runs out of memory: slow and certain. */
static void plain(const ch_product *p) {
  for (int64_t i = 0; i < p->m; i++)
    for (int64_t j = 0; j < p->n; j++) {
      float sum = 0, *c = p->c + i * p->ldc + j;
      for (int64_t l = 0; l < p->k; l++)
        sum += element(p, p->a, p->trans_a ? l * p->lda + i : i * p->lda + l) *
               element(p, p->b, p->trans_b ? j * p->ldb + l : l * p->ldb + j);
      *c = p->accumulate ? *c + p->alpha * sum : p->alpha * sum;
    }
}

/* oneDNN's matmul, and its factor apart: with one it leaves AMX for a gemm with a scalar epilogue
 * (docs/performance.md).
 */
static int matmul(const ch_product *p, void *scratch) {
  ch_product plain = *p;
  if (p->alpha == 1 || p->accumulate) return ch_product_matmul(p, scratch);
  plain.alpha = 1;
  if (ch_product_matmul(&plain, scratch)) return 1;
  for (int64_t i = 0; i < p->m; i++)
    for (int64_t j = 0; j < p->n; j++) p->c[i * p->ldc + j] *= p->alpha;
  return 0;
}

static int sgemm(const ch_product *p) {
  return dnnl_sgemm(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', p->m, p->n, p->k, p->alpha, p->a, p->lda, p->b,
                    p->ldb, p->accumulate ? 1.0f : 0.0f, p->c, p->ldc) != dnnl_success;
}

/* A^T B that is set and too large for the caches: worth writing past them. */
static int large_gradient(const ch_product *p) { return p->large && p->trans_a && !p->trans_b && !p->accumulate; }

/* sgemm packs both operands. With few rows it spends too much on packing weights, and it never writes past the caches:
 * there our own product is faster (docs/performance.md). */
static int prefers_own(const ch_product *p) {
  enum { FEW_ROWS = 128, LARGE_WEIGHTS = 1 << 18, MORE_ROWS = 512, LEAST_DEPTH = 256, MOST_DEPTH = 512 };
  if (p->bf16 || ch_machine_isa() == CH_ISA_GENERIC) return 0;
  if (p->trans_a) return large_gradient(p) && p->k <= MOST_DEPTH;
  if (p->trans_b) return p->m <= MORE_ROWS && p->k >= LEAST_DEPTH;
  return p->m <= FEW_ROWS && p->n * p->k >= LARGE_WEIGHTS;
}

/* The part of the inner dimension that begins at `begin`; all but the first add to C. */
static ch_product slice(const ch_product *p, int64_t begin, int64_t depth) {
  int64_t size = p->bf16 ? sizeof(ch_bf16) : sizeof(float);
  ch_product part = *p;
  part.k = depth;
  part.accumulate = p->accumulate || begin > 0;
  part.a = (const char *)p->a + size * begin * (p->trans_a ? p->lda : 1);
  part.b = (const char *)p->b + size * begin * (p->trans_b ? 1 : p->ldb);
  return part;
}

/* How much of the inner dimension to take at once. The gradients of weights are deep: in float, sgemm loses up to a
 * fifth when rows of A lie far apart and there are many; in bf16 the number of rows is the depth, primitives for it are
 * the slowest to make, and with whole steps and a rest few depths occur. */
static int64_t depth_of_slice(const ch_product *p, int64_t left) {
  enum { DEEP = 512, STEP = 32 };
  if (!p->trans_a) return left;
  if (!p->bf16) return left < 2 * DEEP ? left : DEEP;
  return left < STEP ? left : left / STEP * STEP;
}

static void in_slices(const ch_product *p, void *scratch) {
  for (int64_t begin = 0, depth; begin < p->k; begin += depth) {
    depth = depth_of_slice(p, p->k - begin);
    ch_product part = slice(p, begin, depth);
    if (part.bf16 ? matmul(&part, scratch) : sgemm(&part)) plain(&part);
  }
}

/* A large gradient from bf16, in blocks that stay in the cache until they are complete and written past it: oneDNN's
 * stores would read every line of C first. */
static void in_blocks(const ch_product *p, void *scratch) {
  float *block = (float *)((char *)scratch + CH_MATMUL_SCRATCH);
  for (int64_t j = 0; j < p->n; j += CH_PRODUCT_BLOCK)
    for (int64_t i = 0; i < p->m; i += CH_PRODUCT_BLOCK) {
      ch_product part = *p;
      part.m = p->m - i < CH_PRODUCT_BLOCK ? p->m - i : CH_PRODUCT_BLOCK;
      part.n = p->n - j < CH_PRODUCT_BLOCK ? p->n - j : CH_PRODUCT_BLOCK;
      part.a = (const ch_bf16 *)p->a + i;
      part.b = (const ch_bf16 *)p->b + j;
      part.c = block;
      part.ldc = part.n;
      in_slices(&part, scratch);
      CH_SIMD_PICK(ch_product_write)(part.m, part.n, block, p->c + i * p->ldc + j, p->ldc);
    }
}

/* oneDNN 2.6 takes the stack pointer for a pointer of its own inside its AVX-512 kernels (oneDNN issue 4845): a signal
 * handler that ran then would write its frame into the heap. No signal is delivered to this thread while they run. */
static void by_onednn(const ch_product *p, void *scratch) {
  sigset_t before;
  ch_signals_hold(&before);
  if (p->bf16 && large_gradient(p))
    in_blocks(p, scratch);
  else
    in_slices(p, scratch);
  ch_signals_release(&before);
}

void ch_product_run(const ch_product *p, void *scratch) {
  if (p->m <= 0 || p->n <= 0) return;
  if (p->k <= 0)
    plain(p);
  else if (prefers_own(p))
    CH_SIMD_PICK(ch_product_float)(p, scratch);
  else
    by_onednn(p, scratch);
}

int ch_product_has_bf16(void) {
  if (!ch_machine_has_bf16()) return 0;
  ch_bf16 a[16] = {0}, b[16] = {0}; /* DNNL_MAX_CPU_ISA may forbid oneDNN what the machine can do */
  float c[16];
  ch_product p = {.bf16 = 1, .m = 4, .n = 4, .k = 4, .a = a, .b = b, .c = c, .lda = 4, .ldb = 4, .ldc = 4, .alpha = 1};
  void *scratch = aligned_alloc(64, CH_PRODUCT_SCRATCH);
  sigset_t before;
  int works = 0;
#pragma omp parallel num_threads(1)
  if (scratch) {
    ch_product_begin();
    ch_signals_hold(&before);
    works = ch_product_matmul(&p, scratch) == 0;
    ch_signals_release(&before);
  }
  free(scratch);
  return works;
}
