/* The fast gemm and expert_gemm against the reference, over shapes, layouts, compute types and numbers of threads. */
#include <omp.h>

#include "cpu/simd/vexp.h"
#include "cpu/threaded/product.h"
#include "testing.h"

typedef struct {
  int64_t m, n, k;
} size;

static const size sizes[] = {{1, 1, 1},
                             {1, 128, 512},
                             {5, 7, 3},
                             {64, 64, 64},
                             {130, 70, 33},
                             {33, 500, 129},
                             {300, 17, 65},
                             {256, 384, 1},
                             {TEST_ROWS(128), 128, 700},
                             {TEST_ROWS(511), 513, 96},
                             {4, 2000, 40},
                             {TEST_ROWS(700), 96, 300},
                             {40, 50, 1100}};

/* Compute in bf16 means: inputs are rounded, then multiplied in full precision. */
static void round_values(real *x, int64_t count) {
  for (int64_t i = 0; i < count; i++) x[i] = ch_bf16_value(ch_bf16_round(x[i]));
}

static ch_bf16 *rounded_copy(const real *x, int64_t count) {
  ch_bf16 *y = count < 0 ? NULL : malloc(((size_t)count + 1) * sizeof *y);
  if (!y) abort();
  for (int64_t i = 0; i < count; i++) y[i] = ch_bf16_round(x[i]);
  return y;
}

/* One shape and form, everything strided, C accumulating on what stands there or set over poison. */
static void check_gemm(const char *backend, ch_compute compute, size s, int form, int accumulate, int exact) {
  int ta = form & 1, tb = form >> 1;
  int64_t lda = (ta ? s.m : s.k) + 3, ldb = (tb ? s.k : s.n) + 5, ldc = s.n + 2;
  int64_t count_a = (ta ? s.k : s.m) * lda, count_b = (tb ? s.n : s.k) * ldb, count_c = s.m * ldc;
  real *a = test_new_normal(count_a, 1), *b = test_new_normal(count_b, 2);
  real *got[4], *want = test_new_normal(count_c, 3);
  ch_bf16 *b16 = rounded_copy(b, count_b);
  ch_gemm_args g = {.m = s.m,
                    .n = s.n,
                    .k = s.k,
                    .trans_a = ta,
                    .trans_b = tb,
                    .a = a,
                    .b = b,
                    .lda = lda,
                    .ldb = ldb,
                    .ldc = ldc,
                    .alpha = (real)0.3,
                    .accumulate = accumulate,
                    .exact = exact};
  for (int t = 1; t <= 3; t++) {
    got[t] = test_new_normal(count_c, 3);
    for (int64_t i = 0; !accumulate && i < s.m; i++) test_poison(got[t] + i * ldc, s.n);
    g.c = got[t];
    g.b16 = t == 2 ? b16 : NULL; /* given or made: the same bits */
    TEST_EXEC(backend, compute, t, x.ops->gemm(&x, &g));
  }
  if (compute == CH_COMPUTE_BF16 && !exact) round_values(a, count_a), round_values(b, count_b);
  g.c = want;
  TEST_EXEC("reference", CH_COMPUTE_FP32, 2, x.ops->gemm(&x, &g));
  test_close(got[1], want, count_c, 1e-5);
  assert_memory_equal(got[1], got[2], (size_t)count_c * sizeof(real));
  assert_memory_equal(got[1], got[3], (size_t)count_c * sizeof(real));
  free(a), free(b), free(b16), free(want), free(got[1]), free(got[2]), free(got[3]);
}

/* The small shapes in both ways, so that nothing made for one is taken for the other. */
static void check_gemms(ch_compute compute, int exact) {
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int form = 0; form < 4; form++) {
      check_gemm("cpu", compute, sizes[i], form, (int)i % 2, exact);
      if (i < 5) check_gemm("cpu", compute, sizes[i], form, (int)(i + 1) % 2, exact);
    }
}

static void gemm_fp32(void **state) { (void)state, check_gemms(CH_COMPUTE_FP32, 0); }
static void gemm_bf16(void **state) { (void)state, check_gemms(CH_COMPUTE_BF16, 0); }
static void gemm_exact(void **state) { (void)state, check_gemms(CH_COMPUTE_BF16, 1); }

/* An inner dimension of 0: C = 0, or unchanged with accumulate. */
static void gemm_without_inner_dimension(void **state) {
  real a[1] = {0}, c[6], kept[6] = {1, 2, 3, 4, 5, 6}, zero[6] = {0};
  ch_gemm_args g = {.m = 2, .n = 3, .k = 0, .a = a, .b = a, .c = c, .lda = 1, .ldb = 3};
  test_poison(c, 6);
  TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, x.ops->gemm(&x, &g));
  assert_memory_equal(c, zero, sizeof c);
  memcpy(c, kept, sizeof c);
  g.accumulate = 1;
  TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, x.ops->gemm(&x, &g));
  assert_memory_equal(c, kept, sizeof c);
}

/* Two products in one call have the bits of separate calls: the two of a backward pass, which share an operand; a
 * second one in full precision; one of another operand; and one of another shape. */
static void check_beside(const char *backend, ch_compute compute, int invariant) {
  enum { N = 300, IN = 70, OUT = 130, PRODUCTS = 5 };
  real *a = test_new_normal(N * OUT, 1), *w = test_new_normal(OUT * IN, 2), *in = test_new_normal(N * IN, 3),
       *other = test_new_normal(N * OUT, 4);
  ch_gemm_args g[PRODUCTS] = {{.m = OUT, .n = IN, .k = N, .trans_a = 1, .a = a, .b = in},
                              {.m = N, .n = IN, .k = OUT, .a = a, .b = w},
                              {.m = N, .n = IN, .k = OUT, .a = a, .b = w, .exact = 1},
                              {.m = N, .n = IN, .k = OUT, .a = other, .b = w},
                              {.m = OUT, .n = IN, .k = N, .a = a, .b = in}};
  real *c[2][PRODUCTS];
  for (int together = 0; together < 2; together++) {
    for (int i = 0; i < PRODUCTS; i++) {
      c[together][i] = test_new(N * IN);
      test_poison(c[together][i], N * IN);
      g[i].c = c[together][i];
      g[i].second = together && i + 1 < PRODUCTS ? &g[i + 1] : NULL;
    }
    TEST_EXEC(backend, compute, 2, {
      x.batch_invariant = invariant;
      for (int i = 0; i < (together ? 1 : PRODUCTS); i++) x.ops->gemm(&x, &g[i]);
    });
  }
  for (int i = 0; i < PRODUCTS; i++) {
    assert_false(isnan(c[1][i][g[i].m * IN - 1]));
    assert_memory_equal(c[0][i], c[1][i], N * IN * sizeof(real));
    free(c[0][i]), free(c[1][i]);
  }
  free(a), free(w), free(in), free(other);
}

static void gemms_beside_each_other(void **state) {
  check_beside("reference", CH_COMPUTE_FP32, 0);
  for (int invariant = 0; invariant < 2; invariant++) {
    check_beside("cpu", CH_COMPUTE_FP32, invariant);
    check_beside("cpu", CH_COMPUTE_BF16, invariant);
  }
}

/* NaN in an input comes out, in the rows it belongs to and in no other. */
static void gemm_passes_nan(void **state) {
  for (int compute = 0; compute < 2; compute++) {
    real *a = test_new_normal(40 * 40, 1), *b = test_new_normal(40 * 40, 2), *c = test_new(40 * 40);
    a[3 * 40 + 7] = (real)NAN;
    ch_gemm_args g = {.m = 40, .n = 40, .k = 40, .a = a, .b = b, .c = c};
    TEST_EXEC("cpu", (ch_compute)compute, 2, x.ops->gemm(&x, &g));
    for (int i = 0; i < 40 * 40; i++) assert_int_equal(isnan(c[i]), i / 40 == 3);
    free(a), free(b), free(c);
  }
}

static const int even[] = {0, 50, 100, 150, 200}, uneven[] = {0, 0, 1, 300, 300, 317, 400, 400}, single[] = {0, 600},
                 nobody[] = {0, 0, 0}, few[] = {0, 3, 14}, square[] = {0, TEST_ROWS(64)}, near[] = {0, 30, 70, 70, 103};
typedef struct {
  const int *begin;
  int experts;
  int64_t n, k;
} expert_size;
static const expert_size expert_sizes[] = {{even, 4, 96, 64},      {uneven, 7, 130, 33}, {single, 1, 256, 128},
                                           {nobody, 2, 64, 64},    {uneven, 7, 40, 512}, {few, 2, 2000, 1100},
                                           {square, 1, 128, 8000}, {near, 4, 96, 48}};

static int max_slots_of(expert_size s) {
  int max = 0;
  for (int i = 0; i < s.experts; i++)
    if (s.begin[i + 1] - s.begin[i] > max) max = s.begin[i + 1] - s.begin[i];
  return max;
}

/* accumulate: W of CH_TN, or C of the others, gets it added; else it is set, over poison. Rows that belong to nobody
 * are poison too, and known bounds of loads change nothing. */
enum { SPARE = 9 };
static void check_expert_gemm(ch_compute compute, expert_size s, ch_gemm_form form, int accumulate) {
  int rows = s.begin[s.experts];
  int64_t count_a = (rows + SPARE) * s.k, count_c = (rows + SPARE) * s.n, count_w = s.experts * s.n * s.k;
  real *a = test_new_normal(count_a, 1), *c = test_new_normal(count_c, 2);
  test_poison(a + rows * s.k, SPARE * s.k), test_poison(c + rows * s.n, SPARE * s.n);
  real *w = test_new_normal(count_w, 3), *got[4];
  int64_t count = form == CH_TN ? count_w : rows * s.n;
  ch_bf16 *w16 = rounded_copy(w, count_w), *a16 = rounded_copy(a, count_a), *c16 = rounded_copy(c, count_c);
  ch_expert_gemm_args g = {.form = form,
                           .experts = s.experts,
                           .begin = s.begin,
                           .max_rows = rows + SPARE,
                           .load = -1,
                           .max = accumulate ? max_slots_of(s) + 3 : max_slots_of(s),
                           .n = s.n,
                           .k = s.k,
                           .a = a,
                           .c = c,
                           .w = w,
                           .accumulate = accumulate};
  for (int t = 1; t <= 3; t++) {
    got[t] = test_new_normal(count, 4);
    if (!accumulate) test_poison(got[t], count);
    int given = t == 2 && compute == CH_COMPUTE_BF16; /* rounded before: the same bits */
    g.a = given ? NULL : a;
    g.c = given ? NULL : c;
    g.a16 = given ? a16 : NULL;
    g.c16 = given && form == CH_TN ? c16 : NULL;
    *(form == CH_TN ? &g.w : &g.c) = got[t];
    g.w16 = form != CH_TN && t == 2 ? w16 : NULL;
    TEST_EXEC("cpu", compute, t, x.ops->expert_gemm(&x, &g));
  }
  if (compute == CH_COMPUTE_BF16)
    round_values(a, count_a), round_values(form == CH_TN ? c : w, form == CH_TN ? count_c : count_w);
  real *want = test_new_normal(count, 4);
  if (!accumulate) test_poison(want, count);
  *(form == CH_TN ? &g.w : &g.c) = want;
  g.w16 = NULL;
  TEST_EXEC("reference", CH_COMPUTE_FP32, 2, x.ops->expert_gemm(&x, &g));
  test_close(got[1], want, count, 1e-5);
  assert_memory_equal(got[1], got[2], (size_t)count * sizeof(real));
  assert_memory_equal(got[1], got[3], (size_t)count * sizeof(real));
  free(a), free(c), free(w), free(w16), free(a16), free(c16), free(want), free(got[1]), free(got[2]), free(got[3]);
}

static void expert_gemms(void **state) {
  for (size_t i = 0; i < sizeof expert_sizes / sizeof *expert_sizes; i++)
    for (int form = CH_NN; form <= CH_TN; form++)
      for (int compute = CH_COMPUTE_FP32; compute <= CH_COMPUTE_BF16; compute++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
          check_expert_gemm((ch_compute)compute, expert_sizes[i], (ch_gemm_form)form, accumulate);
}

/* The caller's own OpenMP settings come through untouched. */
static void openmp_settings_stay(void **state) {
  int before = omp_get_max_threads();
  real a[4] = {1, 2, 3, 4}, c[4];
  for (int threads = 1; threads <= 2; threads++)
    for (int compute = 0; compute < 2; compute++) {
      ch_gemm_args g = {.m = 2, .n = 2, .k = 2, .a = a, .b = a, .c = c};
      TEST_EXEC("cpu", (ch_compute)compute, threads, x.ops->gemm(&x, &g));
      assert_int_equal(omp_get_max_threads(), before);
    }
}

/* A large output in bf16 goes past the caches, with a rest in both directions, with and without a factor. */
static void large_outputs_in_bf16(void **state) {
  enum { M = 300, N = 272, K = 37 };
  ch_product_prepare();
  real *x = test_new_normal(K * (M + N), 1), *want = test_new(M * N);
  float *c = aligned_alloc(64, M * N * sizeof *c);
  ch_bf16 *a = rounded_copy(x, K * M), *b = rounded_copy(x + K * M, K * N);
  void *scratch = aligned_alloc(64, CH_PRODUCT_SCRATCH);
  ch_product p = {.bf16 = 1, .trans_a = 1, .m = M, .n = N, .k = K, .a = a, .b = b, .lda = M, .ldb = N, .ldc = N};
  for (int64_t i = 0; i < M * N; i++)
    for (int l = 0; l < K; l++) want[i] += ch_bf16_value(a[l * M + i / N]) * ch_bf16_value(b[l * N + i % N]);
  for (int way = 0; way < 2; way++) {
    p.large = !way;
    p.alpha = way ? 0.25f : 1;
    p.c = c;
    test_poison(c, M * N);
    ch_product_run(&p, scratch);
    for (int64_t i = 0; i < M * N; i++) c[i] /= p.alpha;
    test_close(c, want, M * N, 1e-5);
  }
  free(x), free(want), free(c), free(a), free(b), free(scratch);
}

/* To nearest, ties to even; what is too large becomes infinite, NaN stays NaN. */
static void rounding(void **state) {
  const struct {
    uint32_t from;
    ch_bf16 to;
  } cases[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82},
               {0xbf818000, 0xbf82}, {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
               {0x00000001, 0x0000}, {0x80000000, 0x8000}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_int_equal(ch_bf16_round(ch_bits_float(cases[i].from)), cases[i].to);
  const uint32_t nans[] = {0x7f800001, 0x7fffffff, 0xffffffff, 0x7fc00000};
  for (size_t i = 0; i < sizeof nans / sizeof *nans; i++)
    assert_true(isnan(ch_bf16_value(ch_bf16_round(ch_bits_float(nans[i])))));
}

static void exponential(void **state) {
  double worst = 0;
  for (double x = -87; x < 88.36; x += 1.37e-4)
    worst = fmax(worst, fabs((double)ch_expf((float)x) / exp((double)(float)x) - 1));
  assert_true(worst < 1e-7);
  assert_true(ch_expf(-INFINITY) == 0 && ch_expf(-100) == 0 && ch_expf(0) == 1);
  assert_true(isinf(ch_expf(89)) && isinf(ch_expf(INFINITY)) && isnan(ch_expf(NAN)));
}

static void logarithm(void **state) {
  double worst = 0;
  for (double x = 1; x < 1e7; x *= 1 + 1.37e-4) {
    double want = log((double)(float)x);
    worst = fmax(worst, fabs((double)ch_log_from_1((float)x) - want) / (1 + want));
  }
  assert_true(worst < 1e-7);
  assert_true(ch_log_from_1(1) == 0 && isnan(ch_log_from_1(NAN)));
}

/* A smaller team would end threads. */
static void all_threads_or_one(void **state) {
  (void)state;
  for (int threads = 1; threads <= 64; threads++) {
    const ch_exec x = {.threads = threads};
    int before = 1;
    for (int64_t work = 0; work < 200; work++) {
      int used = ch_threads_for(&x, work, 3);
      assert_true((used == 1 || used == threads) && used >= before);
      before = used;
    }
    assert_int_equal(before, threads);
  }
}

TEST_MAIN(NULL, NULL, all_threads_or_one, gemm_fp32, gemm_bf16, gemm_exact, gemm_without_inner_dimension,
          gemms_beside_each_other, gemm_passes_nan, expert_gemms, openmp_settings_stay, large_outputs_in_bf16, rounding,
          exponential, logarithm)
