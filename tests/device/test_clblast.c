/* Products by CLBlast, in buffers of PoCL: those of the reference within rounding, the same bits twice, over poison. */
#include "op/op.h"
#include "testing.h"

/* A copy on the executor's side. */
static real CH_DEV *on_device(ch_exec *x, const real *from, int64_t count) {
  real CH_DEV *to = CH_NEW(&x->tape, real, count);
  if (!ch_counting(x)) x->memory->put(to, from, (size_t)count * sizeof *from);
  return to;
}

typedef struct {
  int64_t a, b, c; /* elements */
  ch_gemm_args gemm;
  ch_expert_gemm_args experts; /* with experts: this one, and b is w */
  const int *begin;
} problem;

static void run(ch_exec *x, const problem *p, const real *const in[3], real *got) {
  real CH_DEV *a = on_device(x, in[0], p->a), CH_DEV *b = on_device(x, in[1], p->b),
              CH_DEV *c = on_device(x, in[2], p->c);
  if (p->experts.experts) {
    ch_expert_gemm_args g = p->experts;
    g.begin = ch_put(&x->tape, p->begin, ((size_t)g.experts + 1) * sizeof *p->begin);
    if (ch_counting(x)) g.host_begin = NULL; /* the plan is made before anything is read */
    g.a = a;
    g.w = g.form == CH_TN ? c : b;
    g.c = g.form == CH_TN ? b : c;
    x->ops->expert_gemm(x, &g);
  } else {
    ch_gemm_args g = p->gemm;
    g.a = a, g.b = b, g.c = c;
    x->ops->gemm(x, &g);
  }
  if (!ch_counting(x)) x->memory->get(got, c, (size_t)p->c * sizeof *got);
}

static void check(const problem *p, int accumulate) {
  real *in[3] = {test_new_normal(p->a, 1), test_new_normal(p->b, 2), test_new_normal(p->c, 3)}, *got[3];
  if (!accumulate) test_poison(in[2], p->c);
  for (int i = 0; i < 3; i++) {
    got[i] = test_new(p->c);
    TEST_EXEC(i ? "opencl" : "reference", CH_COMPUTE_FP32, 1, run(&x, p, (const real *const *)in, got[i]));
  }
  test_close(got[1], got[0], p->c, 1e-5);
  assert_memory_equal(got[1], got[2], (size_t)p->c * sizeof(real));
  for (int i = 0; i < 3; i++) free(in[i]), free(got[i]);
}

static void products(void **state) {
  static const int64_t size[][3] = {{33, 17, 9}, {1, 130, 40}, {64, 64, 64}, {256, 500, 96}, {513, 300, 257}};
  for (int i = 0; i < 5 * 8; i++) {
    int64_t m = size[i / 8][0], n = size[i / 8][1], k = size[i / 8][2];
    check(
        &(problem){.a = m * k,
                   .b = k * n,
                   .c = m * n,
                   .gemm = {.m = m, .n = n, .k = k, .trans_a = i & 1, .trans_b = i >> 1 & 1, .accumulate = i >> 2 & 1}},
        i >> 2 & 1);
  }
}

/* Loads known before, bounded, unknown, and read: worth padding, or not (35 of 80 are, with an expert of none; 77 of 80
 * are not). */
static void products_of_experts(void **state) {
  static const int even[] = {0, 30, 60, 90}, uneven[] = {0, 35, 35, 80}, skewed[] = {0, 3, 3, 80};
  static const int *const begins[] = {even, uneven, uneven, uneven, skewed};
  enum { N = 40, K = 24, EXPERTS = 3, KINDS = 5, READ = 3 };
  for (int i = 0; i < 3 * KINDS * 2; i++) {
    int form = i % 3, kind = i / 3 % KINDS, accumulate = i / (3 * KINDS), rows = kind ? 80 : 90;
    problem p = {.a = rows * K, .b = EXPERTS * K * N, .c = rows * N, .begin = begins[kind]};
    if (form == CH_TN) p.b = rows * N, p.c = EXPERTS * K * N;
    p.experts = (ch_expert_gemm_args){.form = (ch_gemm_form)form,
                                      .experts = EXPERTS,
                                      .max_rows = rows,
                                      .load = kind ? -1 : 30,
                                      .most = kind == 1 ? 50 : 0,
                                      .host_begin = kind >= READ ? begins[kind] : NULL,
                                      .n = N,
                                      .k = K,
                                      .accumulate = accumulate};
    check(&p, accumulate);
  }
}

/* Without it the own kernel would pass this test as well. */
static void is_there(void **state) {
  char text[256];
  test_ok(ch_backend_find("opencl")->describe(0, text, sizeof text) ? CHOIR_OK : CHOIR_ERROR_UNSUPPORTED);
  if (!strstr(text, "products by CLBlast")) fail_msg("%s (apt-get install libclblast1)", text);
}

int main(void) {
#ifdef CHOIR_SANITIZED
  print_message("NOT TESTED: CLBlast; OpenCL's drivers do not run under sanitizers\n");
  return 0;
#endif
  const struct CMUnitTest tests[] = {cmocka_unit_test(is_there), cmocka_unit_test(products),
                                     cmocka_unit_test(products_of_experts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
