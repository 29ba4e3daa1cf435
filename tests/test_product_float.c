/* The own float product in every instruction set, of every form, against sums in double precision. */
#include "base/machine.h"
#include "cpu/simd/product.h"
#include "testing.h"

typedef struct {
  int64_t m, n, k;
} size;

/* Few rows and many, whole tiles and edges, one slice of the depth and several, products that are swapped or not. */
static const size sizes[] = {{1, 1, 1},      {6, 64, 16},   {7, 65, 17},     {5, 200, 40},  {64, 130, 513},
                             {12, 16, 1100}, {70, 9, 33},   {128, 192, 300}, {3, 700, 2},   {25, 31, 520},
                             {600, 40, 50},  {48, 64, 256}, {4, 1024, 5},    {513, 20, 600}};

typedef void (*variant)(const ch_product *p, float *scratch);

enum { GAP = 3 }; /* between rows of C: nothing may be written there */

static double wanted(const ch_product *p, int64_t i, int64_t j, float before) {
  const float *a = p->a, *b = p->b;
  double sum = 0;
  for (int64_t l = 0; l < p->k; l++)
    sum += (double)a[p->trans_a ? l * p->lda + i : i * p->lda + l] *
           (double)b[p->trans_b ? j * p->ldb + l : l * p->ldb + j];
  return (double)p->alpha * sum + (p->accumulate ? (double)before : 0);
}

static void compare(const ch_product *p, const float *before, double scale) {
  for (int64_t i = 0; i < p->m; i++) {
    for (int64_t j = 0; j < p->n; j++) {
      double error = fabs((double)p->c[i * p->ldc + j] - wanted(p, i, j, before[i * p->ldc + j]));
      if (!(error <= 5e-6 * scale))
        fail_msg("%d x %d x %d, form %d%d, accumulate %d, large %d: element %d, %d is off by %g", (int)p->m, (int)p->n,
                 (int)p->k, p->trans_a, p->trans_b, p->accumulate, p->large, (int)i, (int)j, error);
    }
    for (int64_t j = p->n; j < p->ldc; j++) assert_true(isnan(p->c[i * p->ldc + j]));
  }
}

/* One product into memory that is aligned, so that it may go past the caches, and scratch that holds NaN. */
static void check(variant run, size s, int form, int accumulate, int large) {
  int ta = form & 1, tb = form >> 1;
  int64_t ldc = large ? (s.n + 15) / 16 * 16 : s.n + GAP, room = s.m * ldc;
  float *a = test_new_normal(s.m * s.k, 1), *b = test_new_normal(s.k * s.n, 2), *before = test_new_normal(room, 3);
  float *c = aligned_alloc(64, (size_t)(room + 15) / 16 * 64), *scratch = aligned_alloc(64, CH_PRODUCT_SCRATCH);
  if (!c || !scratch) abort();
  ch_product p = {.trans_a = ta, .trans_b = tb, .accumulate = accumulate, .large = large, .m = s.m, .n = s.n};
  p.k = s.k, p.a = a, p.b = b, p.c = c, p.alpha = 0.7f;
  p.lda = ta ? s.m : s.k, p.ldb = tb ? s.k : s.n, p.ldc = ldc;
  test_poison(c, room);
  test_poison(scratch, CH_PRODUCT_SCRATCH / (int64_t)sizeof *scratch);
  for (int64_t i = 0; i < s.m && accumulate; i++) memcpy(c + i * ldc, before + i * ldc, (size_t)s.n * sizeof *c);
  run(&p, scratch);
  compare(&p, before, sqrt((double)s.k) + 1);
  free(a), free(b), free(before), free(c), free(scratch);
}

static void check_all(variant run) {
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int form = 0; form < 4; form++)
      for (int way = 0; way < 3; way++) check(run, sizes[i], form, way == 1, way == 2);
}

static void generic(void **state) { (void)state, check_all(ch_product_float_generic); }

#if defined(__x86_64__)
static void avx2(void **state) {
  (void)state;
  if (ch_machine_isa() < CH_ISA_AVX2) test_skip("avx2: the CPU has none");
  check_all(ch_product_float_avx2);
}
static void avx512(void **state) {
  (void)state;
  if (ch_machine_isa() < CH_ISA_AVX512) test_skip("avx512: the CPU has none");
  check_all(ch_product_float_avx512);
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(generic),
#if defined(__x86_64__)
    cmocka_unit_test(avx2),
    cmocka_unit_test(avx512),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
