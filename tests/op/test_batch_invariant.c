/* Products by row: right, and of each row the same bits however many rows there are. */
#include "variants.h"

typedef struct {
  int m, n, k, trans_b, accumulate;
  real alpha;
} shape;
static const shape shapes[] = {{1, 1, 1, 0, 0, 1},       {1, 300, 64, 1, 0, 1},  {7, 129, 33, 1, 1, 1},
                               {13, 70, 100, 0, 0, 2},   {20, 200, 17, 0, 1, 1}, {64, 64, 64, 1, 0, (real)0.5},
                               {5, 1000, 768, 1, 0, 1},  {3, 500, 260, 0, 1, 1}, {9, 53, 20, 1, 0, (real)0.3},
                               {9, 20, 53, 0, 1, 3},     {8, 391, 50, 0, 0, 1},  {7, 300, 700, 1, 0, 1},
                               {37, 150, 1100, 0, 1, 3}, {18, 70, 530, 0, 0, 1}, {21, 165, 2100, 0, 1, 1}};

typedef struct {
  shape s;
  const real *a, *b, *c;
  int bf16;
} inputs;

static void run_gemm(ch_exec *x, const void *context, real *out) {
  const inputs *in = context;
  const shape *s = &in->s;
  x->batch_invariant = 1;
  if (in->bf16) x->compute = CH_COMPUTE_BF16;
  if (s->accumulate && !ch_counting(x)) memcpy(out, in->c, (size_t)s->m * (size_t)s->n * sizeof(real));
  x->ops->gemm(x, &(ch_gemm_args){.m = s->m,
                                  .n = s->n,
                                  .k = s->k,
                                  .trans_b = s->trans_b,
                                  .a = in->a,
                                  .b = in->b,
                                  .c = out,
                                  .alpha = s->alpha,
                                  .accumulate = s->accumulate});
}

static inputs make_inputs(shape s) {
  return (inputs){s, test_new_normal((int64_t)s.m * s.k, 1), test_new_normal((int64_t)s.k * s.n, 2),
                  test_new_normal((int64_t)s.m * s.n, 3), 0};
}

static void free_inputs(inputs *in) { free((real *)in->a), free((real *)in->b), free((real *)in->c); }

static void equals_reference(void **state) {
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    inputs in = make_inputs(shapes[i]);
    test_variants("gemm by row", run_gemm, &in, TEST_PARTS((int64_t)in.s.m * in.s.n), 3e-6);
    free_inputs(&in);
  }
}

/* Rows one by one, in twos and so on. */
static void check_rows(const char *isa, const inputs *in) {
  int64_t n = in->s.n;
  real *want = test_run_on("cpu", isa, 2, run_gemm, in, in->s.m * n);
  for (int rows = 1; rows < in->s.m; rows++)
    for (int first = 0; first + rows <= in->s.m; first += rows) {
      inputs part = *in;
      part.s.m = rows;
      part.a += (int64_t)first * in->s.k;
      part.c += first * n;
      real *got = test_run_on("cpu", isa, 1, run_gemm, &part, rows * n);
      if (memcmp(got, want + first * n, (size_t)(rows * n) * sizeof(real)))
        fail_msg("%s, %s: %d x %d x %d: rows %d to %d differ alone", isa, in->bf16 ? "bf16" : "fp32", in->s.m, in->s.n,
                 in->s.k, first, first + rows - 1);
      free(got);
    }
  free(want);
}

static void rows_stand_alone(void **state) {
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    for (int isa = 0; isa < TEST_ISAS; isa++)
      for (int bf16 = 0; bf16 < 2; bf16++) {
        inputs in = make_inputs(shapes[i]);
        in.bf16 = bf16;
        check_rows(test_isas[isa], &in);
        free_inputs(&in);
      }
}

/* Experts with few rows, many and none. */
enum { EXPERTS = 5, D = 40, WIDE = 200, ROWS = 21 };
typedef struct {
  ch_gemm_form form;
  const real *a, *w;
  int bf16;
} experts;
static const int expert_begin[] = {0, 3, 3, 4, 20, 21};

static void run_experts(ch_exec *x, const void *context, real *out) {
  const experts *in = context;
  x->batch_invariant = 1;
  if (in->bf16) x->compute = CH_COMPUTE_BF16;
  x->ops->expert_gemm(x, &(ch_expert_gemm_args){.form = in->form,
                                                .experts = EXPERTS,
                                                .begin = expert_begin,
                                                .max_rows = ROWS,
                                                .load = -1,
                                                .n = WIDE,
                                                .k = D,
                                                .a = in->a,
                                                .c = out,
                                                .w = (real *)in->w});
}

static void experts_equal_reference(void **state) {
  real *a = test_new_normal(ROWS * D, 1), *w = test_new_normal(EXPERTS * D * WIDE, 2);
  test_variants("expert_gemm by row, NN", run_experts, &(experts){CH_NN, a, w, 0}, TEST_PARTS(ROWS * WIDE), 3e-6);
  test_variants("expert_gemm by row, NT", run_experts, &(experts){CH_NT, a, w, 0}, TEST_PARTS(ROWS * WIDE), 3e-6);
  free(a), free(w);
}

/* A row of an expert has the bits that it has in a product of its own. */
static void check_expert_rows(const char *isa, ch_gemm_form form) {
  real *a = test_new_normal(ROWS * D, 1), *w = test_new_normal(EXPERTS * D * WIDE, 2);
  experts in = {form, a, w, 1};
  real *got = test_run_on("cpu", isa, 2, run_experts, &in, ROWS * WIDE);
  for (int i = 0; i < EXPERTS; i++)
    for (int row = expert_begin[i]; row < expert_begin[i + 1]; row++) {
      inputs one = {{1, WIDE, D, form == CH_NT, 0, 1}, a + row * D, w + i * D * WIDE, NULL, 1};
      real *want = test_run_on("cpu", isa, 1, run_gemm, &one, WIDE);
      if (memcmp(got + row * WIDE, want, WIDE * sizeof *want))
        fail_msg("%s: row %d of expert %d differs alone", isa, row, i);
      free(want);
    }
  free(a), free(w), free(got);
}

static void expert_rows_stand_alone(void **state) {
  for (int isa = 0; isa < TEST_ISAS; isa++) {
    check_expert_rows(test_isas[isa], CH_NN);
    check_expert_rows(test_isas[isa], CH_NT);
  }
}

/* bf16: the product of what the inputs round to, with weights rounded before or not, and with `exact` of neither. */
static void check_rounding(const char *isa, int trans_b, int exact, int before) {
  enum { M = 9, N = 300, K = 70 };
  real *a = test_new_normal(M * K, 1), *b = test_new_normal(N * K, 2), *got = test_new(M * N);
  real *a2 = test_new_normal(M * K, 1), *b2 = test_new_normal(N * K, 2), *want = test_new(M * N);
  ch_bf16 b16[N * K];
  for (int i = 0; i < M * K && !exact; i++) a2[i] = ch_bf16_value(ch_bf16_round(a[i]));
  for (int i = 0; i < N * K; i++) {
    b16[i] = ch_bf16_round(b[i]);
    if (!exact) b2[i] = ch_bf16_value(b16[i]);
  }
  ch_gemm_args g = {.m = M, .n = N, .k = K, .trans_b = trans_b, .a = a, .b = b, .c = got, .exact = exact};
  if (before) g.b16 = b16;
  test_use_isa(isa);
  TEST_EXEC("cpu", CH_COMPUTE_BF16, 2, (x.batch_invariant = 1, x.ops->gemm(&x, &g)));
  unsetenv("CHOIR_ISA");
  g.a = a2, g.b = b2, g.c = want;
  TEST_EXEC("reference", CH_COMPUTE_FP32, 1, x.ops->gemm(&x, &g));
  test_close(got, want, M * N, 1e-6);
  free(a), free(b), free(got), free(a2), free(b2), free(want);
}

static void rounds_its_inputs(void **state) {
  for (int isa = 0; isa < TEST_ISAS; isa++)
    for (int trans_b = 0; trans_b < 2; trans_b++)
      for (int exact = 0; exact < 2; exact++)
        for (int before = 0; before < 2; before++) check_rounding(test_isas[isa], trans_b, exact, before);
}

/* With B transposed, a column of the product has the same bits whichever other columns are computed. */
static void columns_stand_alone(void **state) {
  enum { M = 7, N = 150, K = 90 };
  inputs in = make_inputs((shape){M, N, K, 1, 0, 1});
  for (int isa = 0; isa < TEST_ISAS; isa++)
    for (in.bf16 = 0; in.bf16 < 2; in.bf16++) {
      real *want = test_run_on("cpu", test_isas[isa], 2, run_gemm, &in, M * N);
      for (int columns = 1; columns < N; columns += 1 + columns / 3) {
        inputs part = in;
        part.s.n = columns;
        real *got = test_run_on("cpu", test_isas[isa], 1, run_gemm, &part, M * columns);
        for (int i = 0; i < M; i++)
          assert_memory_equal(got + i * columns, want + i * N, (size_t)columns * sizeof(real));
        free(got);
      }
      free(want);
    }
  free_inputs(&in);
}

TEST_MAIN(NULL, NULL, equals_reference, rows_stand_alone, columns_stand_alone, experts_equal_reference,
          expert_rows_stand_alone, rounds_its_inputs)
