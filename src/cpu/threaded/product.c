#include "cpu/threaded/product.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/machine.h"
#include "base/signals.h"
#include "cpu/simd/product.h"

/* What multiplies bf16. Set, always to the same, while tables are filled. */
enum { WIDENED, IN_PAIRS, BY_MATMUL };
static atomic_int unit;

void ch_product_prepare(void) {
  if (ch_machine_has_amx() && ch_product_has_matmul())
    unit = BY_MATMUL;
  else
    unit = ch_machine_has_fast_bf16() ? IN_PAIRS : WIDENED;
}

int ch_product_takes_pairs(const ch_product *p) { return unit == IN_PAIRS && p->bf16 && ch_product_in_pairs(p); }

static void by_own(const ch_product *p, void *scratch) {
#if defined(__x86_64__)
  if (ch_product_takes_pairs(p)) {
    ch_product_own_avx512_bf16(p, scratch);
    return;
  }
#endif
  CH_SIMD_PICK(ch_product_own)(p, scratch);
}

void ch_product_begin(void) { omp_set_num_threads(1); }

/* A product without inner dimension: sums of nothing. */
static void clear(const ch_product *p) {
  for (int64_t i = 0; i < p->m && !p->accumulate; i++)
    for (int64_t j = 0; j < p->n; j++) p->c[i * p->ldc + j] = 0;
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

/* A^T B that is set and too large for the caches: worth writing past them. */
static int large_gradient(const ch_product *p) { return p->large && p->trans_a && !p->trans_b && !p->accumulate; }

/* The part of the inner dimension that begins at `begin`; all but the first add to C. */
static ch_product slice(const ch_product *p, int64_t begin, int64_t depth) {
  ch_product part = *p;
  part.k = depth;
  part.accumulate = p->accumulate || begin > 0;
  part.a = (const ch_bf16 *)p->a + begin * (p->trans_a ? p->lda : 1);
  part.b = (const ch_bf16 *)p->b + begin * (p->trans_b ? 1 : p->ldb);
  return part;
}

/* How much of the inner dimension to take at once. For gradients of weights the number of rows is the depth; primitives
 * for it are the slowest to make, and with whole steps and a rest few depths occur. */
static int64_t depth_of_slice(const ch_product *p, int64_t left) {
  enum { STEP = 32 };
  return !p->trans_a || left < STEP ? left : left / STEP * STEP;
}

static void in_slices(const ch_product *p, void *scratch) {
  for (int64_t begin = 0, depth; begin < p->k; begin += depth) {
    depth = depth_of_slice(p, p->k - begin);
    ch_product part = slice(p, begin, depth);
    if (matmul(&part, scratch)) by_own(&part, scratch);
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
  if (large_gradient(p))
    in_blocks(p, scratch);
  else
    in_slices(p, scratch);
  ch_signals_release(&before);
}

void ch_product_run(const ch_product *p, void *scratch) {
  if (p->m <= 0 || p->n <= 0) return;
  if (p->k <= 0)
    clear(p);
  else if (p->bf16 && unit == BY_MATMUL && !p->by_row)
    by_onednn(p, scratch);
  else
    by_own(p, scratch);
}

int ch_product_has_matmul(void) {
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
