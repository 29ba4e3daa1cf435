#include "cpu/threaded/product.h"

#include <stdatomic.h>

#include "base/machine.h"
#include "cpu/simd/product.h"

/* The function that multiplies bf16. Set, always to the same, while tables are filled. */
enum { WIDENED, IN_PAIRS, IN_TILES };
static atomic_int unit;

void ch_product_prepare(void) {
  unit = ch_machine_has_amx() ? IN_TILES : ch_machine_has_fast_bf16() ? IN_PAIRS : WIDENED;
}

int ch_product_takes_pairs(const ch_product *p) { return unit == IN_PAIRS && p->bf16 && ch_product_in_pairs(p); }

static void (*kernel_of(const ch_product *p))(const ch_product *, float *) {
#if defined(__x86_64__)
  if (unit == IN_TILES && p->bf16 && !p->by_row) return ch_product_own_amx;
  if (ch_product_takes_pairs(p)) return ch_product_own_avx512_bf16;
#endif
  return CH_SIMD_PICK(ch_product_own);
}

int64_t ch_product_steps(const ch_product *p) {
  if (unit == IN_TILES && p->bf16) return 0;
  return ch_product_takes_pairs(p) ? (p->k + 1) / 2 : p->k;
}

void ch_product_pack(const ch_product *p, float *panels) {
#if defined(__x86_64__)
  if (ch_product_takes_pairs(p)) {
    ch_product_pack_avx512_bf16(p, panels);
    return;
  }
#endif
  CH_SIMD_PICK(ch_product_pack)(p, panels);
}

/* A product without inner dimension: sums of nothing. */
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
