/* The own product in every instruction set, of every form, of floats and of bf16, against sums in double precision. */
#include "base/machine.h"
#include "cpu/simd/product.h"
#include "testing.h"

typedef struct {
  int64_t m, n, k;
} size;

/* Few rows and many, whole tiles and edges, one slice of the depth and several, products that are swapped or not. */
static const size sizes[] = {{1, 1, 1},
                             {6, 64, 16},
                             {7, 65, 17},
                             {5, 200, 40},
                             {64, 130, 513},
                             {12, 16, 1100},
                             {4, 100, 6000},
                             {TEST_ROWS(300), 260, 70},
                             {TEST_ROWS(100), 320, 1030},
                             {70, 9, 33},
                             {128, 192, 300},
                             {3, 700, 2},
                             {25, 31, 520},
                             {600, 40, 50},
                             {48, 64, 256},
                             {4, 1024, 5},
                             {513, 20, 600},
                             {TEST_ROWS(460), 33, 1024},
                             {16, 48, 64},
                             {49, 31, 96}};

typedef void (*variant)(const ch_product *p, float *scratch);

enum { GAP = 3 }; /* between rows: nothing may be written there, nor read */

static double element(const ch_product *p, const void *array, int64_t i) {
  return (double)(p->bf16 ? ch_bf16_value(((const ch_bf16 *)array)[i]) : ((const float *)array)[i]);
}

/* An operand's rows [count,k] in double precision, each along the depth. */
static double *unpacked(const ch_product *p, const void *array, int64_t count, int64_t ld, int along) {
  double *rows = malloc((size_t)(count * p->k) * sizeof *rows);
  if (!rows) abort();
  for (int64_t i = 0; i < count; i++)
    for (int64_t l = 0; l < p->k; l++) rows[i * p->k + l] = element(p, array, along ? i * ld + l : l * ld + i);
  return rows;
}

static double dot(const double *a, const double *b, int64_t k) {
  double sum = 0;
  for (int64_t l = 0; l < k; l++) sum += a[l] * b[l];
  return sum;
}

static void compare(const ch_product *p, const float *before, double scale) {
  double *a = unpacked(p, p->a, p->m, p->lda, !p->trans_a), *b = unpacked(p, p->b, p->n, p->ldb, p->trans_b);
  for (int64_t i = 0; i < p->m; i++) {
    for (int64_t j = 0; j < p->n; j++) {
      double wanted = (double)p->alpha * dot(a + i * p->k, b + j * p->k, p->k);
      if (p->accumulate) wanted += (double)before[i * p->ldc + j];
      double error = fabs((double)p->c[i * p->ldc + j] - wanted);
      if (!(error <= 7.5e-6 * (double)p->alpha * scale))
        fail_msg("%d x %d x %d, form %d%d, bf16 %d, accumulate %d, large %d: element %d, %d is off by %g", (int)p->m,
                 (int)p->n, (int)p->k, p->trans_a, p->trans_b, p->bf16, p->accumulate, p->large, (int)i, (int)j, error);
    }
    for (int64_t j = p->n; j < p->ldc; j++) assert_true(isnan(p->c[i * p->ldc + j]));
  }
  free(a), free(b);
}

/* Rows of random numbers, as floats or rounded to bf16, `ld` apart; behind the last nothing may be touched. */
static void *new_operand(int64_t rows, int64_t columns, int64_t ld, unsigned seed, int bf16) {
  int64_t count = (rows - 1) * ld + columns;
  float *values = test_new_normal(count, seed);
  ch_bf16 *rounded = bf16 ? malloc((size_t)count * sizeof *rounded) : NULL;
  for (int64_t i = 0; i + 1 < rows; i++) test_poison(values + i * ld + columns, ld - columns);
  if (!bf16) return values;
  if (!rounded) abort();
  for (int64_t i = 0; i < count; i++) rounded[i] = ch_bf16_round(values[i]);
  free(values);
  return rounded;
}

/* One product into memory that is aligned, so that it may go past the caches, and scratch that holds NaN. `twin`,
 * another variant of the product, must give the same bits. */
static void check(variant run, variant twin, size s, int form, int bf16, int accumulate, int large) {
  int ta = form & 1, tb = form >> 1, apart = accumulate ? GAP : 0;
  int64_t ldc = large ? (s.n + 15) / 16 * 16 : s.n + GAP, room = s.m * ldc;
  int64_t lda = (ta ? s.m : s.k) + apart, ldb = (tb ? s.k : s.n) + apart;
  void *a = new_operand(ta ? s.k : s.m, lda - apart, lda, 1, bf16);
  void *b = new_operand(tb ? s.n : s.k, ldb - apart, ldb, 2, bf16);
  float *before = test_new_normal(room, 3);
  float *c = aligned_alloc(64, (size_t)(room + 15) / 16 * 64), *scratch = aligned_alloc(64, CH_PRODUCT_SCRATCH);
  if (!c || !scratch) abort();
  ch_product p = {.trans_a = ta, .trans_b = tb, .accumulate = accumulate, .large = large, .bf16 = bf16};
  p.m = s.m, p.n = s.n, p.k = s.k, p.a = a, p.b = b, p.c = c, p.alpha = accumulate || large ? 0.7f : 1;
  p.lda = lda, p.ldb = ldb, p.ldc = ldc;
  test_poison(c, room);
  test_poison(scratch, CH_PRODUCT_SCRATCH / (int64_t)sizeof *scratch);
  for (int64_t i = 0; i < s.m && accumulate; i++) memcpy(c + i * ldc, before + i * ldc, (size_t)s.n * sizeof *c);
  run(&p, scratch);
  compare(&p, before, sqrt((double)s.k) + 1);
  if (twin) {
    float *same = aligned_alloc(64, (size_t)(room + 15) / 16 * 64);
    if (!same) abort();
    for (int64_t i = 0; i < room; i++) same[i] = accumulate && i % ldc < s.n ? before[i] : c[i];
    p.c = same;
    twin(&p, scratch);
    assert_memory_equal(same, c, (size_t)room * sizeof *c);
    free(same);
  }
  free(a), free(b), free(before), free(c), free(scratch);
}

/* In floats and in bf16, or in bf16 only. */
static void check_all(variant run, variant twin, int only_bf16) {
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int form = 0; form < 4; form++)
      for (int way = 3 * only_bf16; way < 6; way++)
        check(run, twin, sizes[i], form, way / 3, way % 3 == 1, way % 3 == 2);
}

/* A row has the same bits in products of any number of rows, where the depth of a slice does not depend on them. */
static void check_rows(variant run, int trans_b, int bf16) {
  enum { M = 70, N = 90 };
  static const int64_t rows[] = {1, 2, 5, 6, 17, 64};
  const int64_t k = trans_b ? 512 : 1300;
  void *a = new_operand(M, k, k, 1, bf16), *b = new_operand(k, N, N, 2, bf16);
  float *all = test_new(M * N), *some = test_new(M * N), *scratch = aligned_alloc(64, CH_PRODUCT_SCRATCH);
  if (!scratch) abort();
  ch_product p = {.trans_b = trans_b, .bf16 = bf16, .m = M, .n = N, .k = k, .a = a, .b = b, .c = all, .alpha = 1};
  p.lda = k, p.ldb = trans_b ? k : N, p.ldc = N;
  run(&p, scratch);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    p.m = rows[i], p.c = some;
    p.a = (const char *)a + (size_t)((M - p.m) * k) * (bf16 ? sizeof(ch_bf16) : sizeof(float));
    run(&p, scratch);
    assert_memory_equal(some, all + (M - p.m) * N, (size_t)(p.m * N) * sizeof *some);
  }
  free(a), free(b), free(all), free(some), free(scratch);
}

static void check_variant(variant run) {
  check_all(run, NULL, 0);
  for (int form = 0; form < 4; form++) check_rows(run, form & 1, form >> 1);
}

static void check_amx(variant run, variant twin) {
  check_all(run, twin, 1);
  for (int form = 0; form < 2; form++) check_rows(run, form, 1);
}

/* AMX's instructions in C (amx_emulated.c), with vectors of any CPU and of one with AVX-512. */
void ch_product_own_emulated(const ch_product *p, float *scratch);
void ch_product_own_emulated_avx512(const ch_product *p, float *scratch);

static void generic(void **state) { check_variant(ch_product_own_generic); }
static void emulated_amx(void **state) { check_amx(ch_product_own_emulated, NULL); }

#if defined(__x86_64__)
static void avx2(void **state) {
  if (ch_machine_isa() < CH_ISA_AVX2) test_skip("avx2: the CPU has none");
  check_variant(ch_product_own_avx2);
}
static void avx512(void **state) {
  if (ch_machine_isa() < CH_ISA_AVX512) test_skip("avx512: the CPU has none");
  check_variant(ch_product_own_avx512);
}
static void avx512_bf16(void **state) {
  if (!ch_machine_has_bf16()) test_skip("avx512_bf16: the CPU has none");
  check_variant(ch_product_own_avx512_bf16);
}
static void emulated_amx_avx512(void **state) {
  if (ch_machine_isa() < CH_ISA_AVX512) test_skip("AMX emulated beside avx512: the CPU has none");
  check_amx(ch_product_own_emulated_avx512, NULL);
}
/* The CPU computes what the emulation does. */
static void amx(void **state) {
  if (!ch_machine_has_amx()) test_skip("amx: the CPU has none");
  check_amx(ch_product_own_amx, ch_product_own_emulated_avx512);
}
#elif defined(__aarch64__)
static void bfdot(void **state) {
  if (!ch_machine_has_bf16()) test_skip("bfdot: the CPU has none");
  check_variant(ch_product_own_bfdot);
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(generic),
    cmocka_unit_test(emulated_amx),
#if defined(__x86_64__)
    cmocka_unit_test(avx2),
    cmocka_unit_test(avx512),
    cmocka_unit_test(avx512_bf16),
    cmocka_unit_test(emulated_amx_avx512),
    cmocka_unit_test(amx),
#elif defined(__aarch64__)
    cmocka_unit_test(bfdot),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
