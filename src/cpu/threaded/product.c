#include "cpu/threaded/product.h"

#include <stdatomic.h>

#include "base/machine.h"
#include "cpu/simd/product.h"

/* The unit that multiplies bf16. Set while op tables are filled, always to the same value. */
enum { WIDENED, IN_PAIRS, IN_TILES };
static atomic_int unit;

void ch_product_prepare(void) {
  unit = ch_machine_has_amx() ? IN_TILES : ch_machine_has_fast_bf16() ? IN_PAIRS : WIDENED;
}

int ch_product_takes_pairs(const ch_product *p) { return unit == IN_PAIRS && p->bf16 && ch_product_in_pairs(p); }

static void (*kernel_of(const ch_product *p))(const ch_product *, float *) {
  (void)p; /* unused if there is one kernel */
#if defined(__x86_64__)
  if (unit == IN_TILES && p->bf16 && !p->by_row) return ch_product_own_amx;
#endif
#if defined(CH_SIMD_PAIRS)
  if (ch_product_takes_pairs(p)) return CH_SIMD_PAIRS(ch_product_own);
#endif
  return CH_SIMD_PICK(ch_product_own);
}

int64_t ch_product_steps(const ch_product *p) {
  if (unit == IN_TILES && p->bf16) return 0;
  return ch_product_takes_pairs(p) ? (p->k + 1) / 2 : p->k;
}

void ch_product_pack(const ch_product *p, float *panels) {
#if defined(CH_SIMD_PAIRS)
  if (ch_product_takes_pairs(p)) {
    CH_SIMD_PAIRS(ch_product_pack)(p, panels);
    return;
  }
#endif
  CH_SIMD_PICK(ch_product_pack)(p, panels);
}

/* k = 0: C is set to 0 unless it accumulates. */
static void clear(const ch_product *p) {
  for (int64_t i = 0; i < p->m && !p->accumulate; i++)
    for (int64_t j = 0; j < p->n; j++) p->c[i * p->ldc + j] = 0;
}

void ch_product_run(const ch_product *p, void *scratch) {
  if (p->m <= 0 || p->n <= 0) return;
  if (p->k <= 0)
    clear(p);
  else
    kernel_of(p)(p, scratch);
}

const ch_bf16 *ch_rounded_operand(ch_exec *x, const float *array, const ch_bf16 *rounded, int64_t count) {
  if (rounded) return rounded;
  ch_bf16 *fresh = CH_NEW(&x->scratch, ch_bf16, count);
  CH_OP(x, round_bf16, .count = count, .x = array, .y = fresh);
  return fresh;
}

ch_product ch_product_of(const ch_gemm_args *g) {
  return (ch_product){.trans_a = g->trans_a,
                      .trans_b = g->trans_b,
                      .accumulate = g->accumulate,
                      .m = g->m,
                      .n = g->n,
                      .k = g->k,
                      .a = g->a,
                      .b = g->b,
                      .c = g->c,
                      .lda = ch_stride(g->lda, g->trans_a ? g->m : g->k),
                      .ldb = ch_stride(g->ldb, g->trans_b ? g->k : g->n),
                      .ldc = ch_stride(g->ldc, g->n),
                      .alpha = g->alpha ? g->alpha : 1};
}

/* From this many elements per expert, weight gradients bypass the caches: they would be evicted anyway by the other
 * experts' gradients before the next read. */
enum { LARGE = 1 << 19 };

ch_product ch_expert_product(const ch_expert_gemm_args *g, int i) {
  int64_t first = g->begin[i], rows = g->begin[i + 1] - first;
  ch_product p = {.accumulate = g->accumulate, .n = g->n, .lda = g->k, .ldb = g->n, .ldc = g->n, .alpha = 1};
  if (g->form == CH_TN) {
    p.trans_a = 1;
    p.large = g->n * g->k >= LARGE;
    p.m = g->k;
    p.k = rows;
    p.c = g->w + i * g->n * g->k;
    return p;
  }
  p.trans_b = g->form == CH_NT;
  if (p.trans_b) p.ldb = g->k;
  p.m = rows;
  p.k = g->k;
  p.c = g->c ? g->c + first * g->n : NULL;
  p.activate = g->activate;
  p.element = first * g->n;
  return p;
}
