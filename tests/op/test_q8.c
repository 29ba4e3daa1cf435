/* Products with matrices of 8 bits: every instruction set and number of threads gives the reference's bits, and these
 * are close to products of floats. */
#include "base/machine.h"
#include "cpu/simd/q8.h"
#include "testing.h"

typedef struct {
  int64_t m, n, k;
} size;

/* Few rows and many, whole blocks and panels and parts of them, several tasks. */
static const size sizes[] = {{1, 1, 1},
                             {1, 16, 32},
                             {2, 17, 33},
                             {3, 40, 31},
                             {7, 100, 96},
                             {8, 64, 320},
                             {9, 33, 65},
                             {13, 5, 200},
                             {1, 2000, 768},
                             {64, 48, 64},
                             {65, 16, 96},
                             {0, 20, 40},
                             {TEST_ROWS(150), 130, 513},
                             {4, 20, 0}};

static const char *const variants[] = {"generic", "avx2", "avx512"};
enum { VARIANTS = sizeof variants / sizeof *variants, GAP = 3 };

/* The instruction set that the machine gives where `variant` is asked for; nonzero: it has that one. */
static int use_variant(int variant) {
  setenv("CHOIR_ISA", variants[variant], 1);
  return !strcmp(ch_isa_name(ch_machine_isa()), variants[variant]);
}
static int end_variants(void **state) { return (void)state, unsetenv("CHOIR_ISA"); }

/* w [n,k] as a packed matrix, and its values back in w. */
static ch_q8 *packed(real *w, int64_t n, int64_t k) {
  int64_t bytes = ch_q8_matrix_bytes(n, k);
  ch_q8 *b = aligned_alloc(64, (size_t)(bytes + 64));
  if (!b) abort();
  const ch_q8_values f = {w, n, k, k, 1};
  for (int64_t panel = 0; panel < ch_q8_panels(n); panel++) {
    ch_q8_pack(&f, panel, b + panel * ch_q8_panel_bytes(k));
    ch_q8_unpack(b + panel * ch_q8_panel_bytes(k), panel, &f);
  }
  return b;
}

static void run_gemm(const char *backend, int threads, const ch_gemm_args *g) {
  TEST_EXEC(backend, CH_COMPUTE_Q8_0, threads, x.ops->gemm(&x, g));
}

static void check_gemm(size s, int accumulate) {
  int64_t lda = s.k + GAP, ldc = s.n + GAP, count = s.m * ldc;
  real *a = test_new_normal(s.m * lda, 1), *w = test_new_normal(s.n * s.k, 2), *want = test_new_normal(count, 3),
       *exact = test_new_normal(count, 3);
  ch_q8 *b8 = packed(w, s.n, s.k);
  ch_gemm_args g = {.m = s.m,
                    .n = s.n,
                    .k = s.k,
                    .trans_b = 1,
                    .a = a,
                    .b8 = b8,
                    .lda = lda,
                    .c = want,
                    .ldc = ldc,
                    .alpha = (real)0.3,
                    .accumulate = accumulate};
  run_gemm("reference", 2, &g);
  for (int v = 0; v < VARIANTS; v++)
    for (int threads = 1; threads <= 3 && use_variant(v); threads++) {
      real *got = test_new_normal(count, 3);
      g.c = got;
      run_gemm("cpu", threads, &g);
      if (memcmp(got, want, (size_t)count * sizeof *got))
        fail_msg("%s, %d threads, %d x %d x %d: not the reference's bits", variants[v], threads, (int)s.m, (int)s.n,
                 (int)s.k);
      free(got);
    }
  g.c = exact, g.b8 = NULL, g.b = w;
  TEST_EXEC("reference", CH_COMPUTE_FP32, 2, x.ops->gemm(&x, &g));
  test_close(want, exact, count, 0.02);
  free(a), free(w), free(want), free(exact), free(b8);
}

static void products_are_the_references(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int accumulate = 0; accumulate < 2; accumulate++) check_gemm(sizes[i], accumulate);
}

/* Several products in one call, of one left operand and of others, have the bits of separate calls. */
static void products_beside_each_other(void **state) {
  (void)state;
  enum { M = 5, N = 70, K = 96, PRODUCTS = 3 };
  real *a = test_new_normal(2 * M * K, 1), *w = test_new_normal(PRODUCTS * N * K, 2), *c[2][PRODUCTS];
  ch_q8 *b8[PRODUCTS];
  ch_gemm_args g[PRODUCTS];
  for (int i = 0; i < PRODUCTS; i++) b8[i] = packed(w + i * N * K, N, K);
  for (int together = 0; together < 2; together++) {
    for (int i = 0; i < PRODUCTS; i++) {
      c[together][i] = test_new(M * N);
      g[i] = (ch_gemm_args){
          .m = M, .n = N, .k = K, .trans_b = 1, .a = i < 2 ? a : a + M * K, .b8 = b8[i], .c = c[together][i]};
      g[i].second = together && i + 1 < PRODUCTS ? &g[i + 1] : NULL;
    }
    for (int i = 0; i < (together ? 1 : PRODUCTS); i++) run_gemm("cpu", 2, &g[i]);
  }
  for (int i = 0; i < PRODUCTS; i++) {
    assert_memory_equal(c[0][i], c[1][i], M * N * sizeof(real));
    free(c[0][i]), free(c[1][i]), free(b8[i]);
  }
  free(a), free(w);
}

/* A row has the same bits whatever rows are beside it. */
static void rows_are_independent(void **state) {
  (void)state;
  enum { M = 70, N = 50, K = 160 };
  real *a = test_new_normal(M * K, 1), *w = test_new_normal(N * K, 2), *all = test_new(M * N), row[N];
  ch_q8 *b8 = packed(w, N, K);
  run_gemm("cpu", 2, &(ch_gemm_args){.m = M, .n = N, .k = K, .trans_b = 1, .a = a, .b8 = b8, .c = all});
  for (int i = 0; i < M; i++) {
    run_gemm("cpu", 2, &(ch_gemm_args){.m = 1, .n = N, .k = K, .trans_b = 1, .a = a + i * K, .b8 = b8, .c = row});
    assert_memory_equal(row, all + i * N, sizeof row);
  }
  free(a), free(w), free(all), free(b8);
}

/* The largest bytes of both signs, among them -128, which files of others may have; and rows of any magnitude. */
static void extreme_values(void **state) {
  (void)state;
  enum { M = 12, N = 32, K = 64 };
  const float magnitude[M] = {1, 0, 1e5f, 3e38f, 1e-28f, 1e-32f, 1e-45f, 0x1p-100f, 1e20f, 1, 1, 1};
  real *a = test_new(M * K), *w = test_new_normal(N * K, 2), want[M * N], got[M * N];
  ch_q8 *b8 = packed(w, N, K);
  for (int64_t panel = 0; panel < ch_q8_panels(N); panel++) {
    ch_q8 *bytes = b8 + panel * ch_q8_panel_bytes(K) + ch_q8_scale_bytes(K);
    const int8_t extreme[] = {127, -127, -128};
    for (int i = 0; i < 16 * K; i++) bytes[i] = (ch_q8)extreme[(i / 4 + panel) % 3];
  }
  for (int i = 0; i < M * K; i++) a[i] = (real)magnitude[i / K] * (i / K > 8 && i % 5 == 0 ? -1 : 1);
  ch_gemm_args g = {.m = M, .n = N, .k = K, .trans_b = 1, .a = a, .b8 = b8, .c = want};
  run_gemm("reference", 1, &g);
  g.c = got;
  for (int v = 0; v < VARIANTS; v++)
    if (use_variant(v)) {
      run_gemm("cpu", 2, &g);
      assert_memory_equal(got, want, sizeof got);
    }
  for (int i = 0; i < N; i++) assert_true(want[N + i] == 0 && want[6 * N + i] == 0 && want[5 * N + i] == 0);
  for (int i = 0; i < 3 * N; i++) assert_true(isfinite(want[i]));
  assert_true(want[4 * N] != 0 && want[7 * N] != 0);
  free(a), free(w), free(b8);
}

/* What is not finite comes out as NaN, in its row and in no other. */
static void rows_that_are_not_finite(void **state) {
  (void)state;
  enum { M = 9, N = 20, K = 70 };
  real *w = test_new_normal(N * K, 2), c[M * N];
  const float bad[] = {NAN, INFINITY, -INFINITY};
  ch_q8 *b8 = packed(w, N, K);
  for (int backend = 0; backend < 2; backend++)
    for (int v = 0; v < VARIANTS; v++)
      for (int i = 0; i < 3 && use_variant(v); i++) {
        real *a = test_new_normal(M * K, 1);
        a[4 * K + 69] = (real)bad[i];
        run_gemm(backend ? "cpu" : "reference", 1,
                 &(ch_gemm_args){.m = M, .n = N, .k = K, .trans_b = 1, .a = a, .b8 = b8, .c = c});
        for (int j = 0; j < M * N; j++) assert_int_equal(isnan(c[j]) != 0, j / N == 4);
        free(a);
      }
  free(w), free(b8);
}

/* CPUs with AVX-512 and without vpdpbusd have a variant of their own, which others do not choose. */
static void avx512_without_vnni(void **state) {
  (void)state;
#if defined(__x86_64__)
  enum { M = 11, N = 36, K = 96, BLOCKS = K / CH_Q8_VALUES };
  unsetenv("CHOIR_ISA");
  if (ch_machine_isa() < CH_ISA_AVX512) test_skip("products of 8 bits by AVX-512 without VNNI, which this CPU lacks");
  real *x = test_new_normal(M * K, 1), *w = test_new_normal(N * K, 2), want[M * N], got[M * N];
  ch_q8 *b8 = packed(w, N, K);
  int8_t q[M * K];
  ch_q8_block block[M * BLOCKS];
  const ch_q8_product p = {M, N, K, N, {q, block}, b8, got, 1, 0};
  ch_q8_round_rows_avx512(M, K, x, K, p.a);
  ch_q8_product_run_avx512(&p);
  run_gemm("reference", 1, &(ch_gemm_args){.m = M, .n = N, .k = K, .trans_b = 1, .a = x, .b8 = b8, .c = want});
  assert_memory_equal(got, want, sizeof got);
  free(x), free(w), free(b8);
#endif
}

/* Experts with many rows, one and none; an activation follows. */
static void experts(void **state) {
  (void)state;
  enum { E = 6, N = 70, K = 100, ROWS = 90 };
  const int begin[E + 1] = {0, 3, 3, 4, 80, 80, ROWS};
  real *a = test_new_normal(ROWS * K, 1), *w = test_new_normal(E * N * K, 2), *u = test_new_normal(ROWS * N, 4);
  int64_t bytes = ch_q8_matrix_bytes(N, K);
  ch_q8 *w8 = aligned_alloc(64, (size_t)(E * bytes));
  for (int i = 0; i < E; i++) {
    ch_q8 *one = packed(w + i * N * K, N, K);
    memcpy(w8 + i * bytes, one, (size_t)bytes);
    free(one);
  }
  for (int way = 0; way < 3; way++) { /* set, added, and through the activation of a gated expert */
    real *out[3];
    for (int t = 0; t < 3; t++) {
      real *c = out[t] = test_new_normal(ROWS * N, 3);
      ch_activate_args then = {.activation = CH_SWIGLU, .count = N, .rows = &begin[E], .x = u, .u = c, .y = c};
      ch_expert_gemm_args g = {.form = way == 1 ? CH_NT : CH_NN,
                               .experts = E,
                               .begin = begin,
                               .max_rows = ROWS + 5,
                               .load = -1,
                               .n = N,
                               .k = K,
                               .a = a,
                               .c = c,
                               .w8 = w8,
                               .accumulate = way == 1,
                               .activate = way == 2 ? &then : NULL};
      TEST_EXEC(t ? "cpu" : "reference", CH_COMPUTE_Q8_0, 1 + t, x.ops->expert_gemm(&x, &g));
    }
    assert_memory_equal(out[1], out[2], ROWS * N * sizeof(real));
    if (way < 2) assert_memory_equal(out[0], out[1], ROWS * N * sizeof(real));
    test_close(out[1], out[0], ROWS * N, 1e-6); /* the exponentials differ in their last bits */
    for (int t = 0; t < 3; t++) free(out[t]);
  }
  free(a), free(w), free(u), free(w8);
}

/* All logits of a batch, in several chunks. */
static void head_logits(void **state) {
  (void)state;
  enum { N = 300, D = 48, V = 77 };
  real *in = test_new_normal(N * D, 1), *w = test_new_normal(V * D, 2), *logits[3];
  ch_q8 *w8 = packed(w, V, D);
  double sum[3];
  int32_t target[N];
  for (int i = 0; i < N; i++) target[i] = i % V;
  for (int t = 0; t < 3; t++) {
    logits[t] = test_new(N * V);
    TEST_EXEC(t ? "cpu" : "reference", CH_COMPUTE_Q8_0, 1 + t,
              CH_OP(&x, head, .n = N, .d = D, .V = V, .scale = (real)0.3, .x = in, .w8 = w8, .target = target,
                    .loss_sum = &sum[t], .logits = logits[t]));
    assert_memory_equal(logits[t], logits[0], N * V * sizeof(real));
    assert_true(fabs(sum[t] / sum[0] - 1) < 1e-6);
  }
  for (int t = 0; t < 3; t++) free(logits[t]);
  free(in), free(w), free(w8);
}

/* ---- blocks ---- */

/* As ggml rounds them: halves away from 0; a scale is rounded to half precision after the bytes. */
static void blocks_are_ggmls(void **state) {
  (void)state;
  float x[CH_Q8_VALUES] = {127, 0.5f, -0.5f, 1.5f, 2.5f, -2.5f, 126.5f, 0.49999997f, -126.4f};
  const int8_t want[] = {127, 1, -1, 2, 3, -3, 127, 0, -126};
  int8_t q[CH_Q8_VALUES];
  assert_int_equal(ch_q8_round(x, q), 0x3C00); /* 1 */
  assert_memory_equal(q, want, sizeof want);
  for (int i = 0; i < CH_Q8_VALUES; i++) x[i] = 1e-30f * (float)i;
  assert_int_equal(ch_q8_round(x, q), 0);
  for (int i = 0; i < CH_Q8_VALUES; i++) x[i] = i ? 0 : 1e-45f;
  assert_int_equal(ch_q8_round(x, q), 0);
  x[0] = -CH_Q8_MAX;
  assert_int_equal(ch_q8_round(x, q), 0x7BFF); /* 65504 */
  assert_int_equal(q[0], -127);
}

/* Both orders of a matrix in memory; packed once more, the values give the same bytes. */
static void packing(void **state) {
  (void)state;
  enum { N = 37, K = 75 };
  real *w = test_new_normal(N * K, 1), *turned = test_new(N * K), *back = test_new(N * K);
  for (int i = 0; i < N * K; i++) turned[i % K * N + i / K] = w[i];
  for (int64_t panel = 0; panel < ch_q8_panels(N); panel++) {
    int64_t bytes = ch_q8_panel_bytes(K);
    ch_q8 *b = aligned_alloc(64, (size_t)(3 * bytes));
    const ch_q8_values from = {w, N, K, K, 1}, other = {turned, N, K, 1, N}, to = {back, N, K, K, 1};
    memset(b, 0xA5, (size_t)(3 * bytes));
    ch_q8_pack(&from, panel, b);
    ch_q8_pack(&other, panel, b + bytes);
    ch_q8_unpack(b, panel, &to);
    ch_q8_pack(&to, panel, b + 2 * bytes);
    assert_memory_equal(b, b + bytes, (size_t)bytes);
    assert_memory_equal(b, b + 2 * bytes, (size_t)bytes);
    free(b);
  }
  test_close(back, w, N * K, 0.005);
  free(w), free(turned), free(back);
}

/* Any block, of which ggml writes only those with a byte of 127 or -127, comes back as it was; where all bytes have a
 * common divisor, another block of the same values may. */
static void values_of_blocks_are_kept(void **state) {
  (void)state;
  static const uint16_t scales[] = {0x0001, 0x0003, 0x03FF, 0x0400, 0x1234, 0x2E7B, 0x3C00, 0x5555, 0x7BFF};
  static const int max[] = {1, 2, 17, 100, 126, 127, 128};
  for (size_t s = 0; s < sizeof scales / sizeof *scales; s++)
    for (size_t m = 0; m < sizeof max / sizeof *max; m++) {
      float x[CH_Q8_VALUES], scale = ch_half_value(scales[s]);
      int8_t want[CH_Q8_VALUES], q[CH_Q8_VALUES];
      for (int i = 0; i < CH_Q8_VALUES; i++) want[i] = (int8_t)(i * 61 % (2 * max[m]) - max[m]);
      want[7] = 1; /* so that there is no common divisor */
      for (int i = 0; i < CH_Q8_VALUES; i++) x[i] = scale * (float)want[i];
      assert_int_equal(ch_q8_round(x, q), scales[s]);
      assert_memory_equal(q, want, sizeof q);
      for (int i = 0; i < CH_Q8_VALUES; i++) x[i] = scale * (float)(want[i] / 6 * 6);
      float other = ch_half_value(ch_q8_round(x, q));
      for (int i = 0; i < CH_Q8_VALUES; i++) assert_true(other * (float)q[i] == x[i]);
    }
}

static void values_that_no_block_holds(void **state) {
  (void)state;
  enum { N = 20, K = 40 };
  const float bad[] = {NAN, INFINITY, -INFINITY, 8.4e6f, -3e38f};
  real *w = test_new_normal(N * K, 1);
  assert_int_equal(ch_q8_first_unfit(w, N * K), N * K);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    w[18 * K + 39] = (real)bad[i];
    assert_int_equal(ch_q8_first_unfit(w, N * K), 18 * K + 39);
  }
  free(w);
}

TEST_MAIN(NULL, end_variants, products_are_the_references, products_beside_each_other, rows_are_independent,
          extreme_values, rows_that_are_not_finite, experts, head_logits, blocks_are_ggmls, packing,
          values_of_blocks_are_kept, values_that_no_block_holds, avx512_without_vnni)
