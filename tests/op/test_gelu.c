/* GELU and gated linear units: every variant against the reference and against libm, and the laws they keep. */
#include "variants.h"

static void run_gelu(ch_exec *x, const void *context, real *out) {
  int64_t n = *(const int64_t *)context;
  real *in = test_new_normal(n, 3), *u = test_new_normal(n, 4), *dy = test_new_normal(n, 5);
  for (int64_t i = 0; i < n; i++) in[i] *= 3;
  ch_activate_args a = {.count = n, .x = in, .u = u, .dy = dy};
  a.y = out;
  x->ops->activate(x, &a);
  a.y = out + n, a.dx = out + 2 * n;
  x->ops->activate_backward(x, &a);
  a.activation = CH_GEGLU;
  a.y = out + 3 * n;
  x->ops->activate(x, &a);
  a.y = out + 4 * n, a.dx = out + 5 * n, a.du = out + 6 * n;
  x->ops->activate_backward(x, &a);
  a.activation = CH_SWIGLU;
  a.y = out + 7 * n;
  x->ops->activate(x, &a);
  a.y = out + 8 * n, a.dx = out + 9 * n, a.du = out + 10 * n;
  x->ops->activate_backward(x, &a);
  free(in), free(u), free(dy);
}

static void test_gelu(void **state) {
  static const int64_t counts[] = {1, 7, 16, 1000, 16384, 3 * 16384 + 13};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    int64_t n = counts[i];
    test_variants("gelu", run_gelu, &n, TEST_PARTS(n, n, n, n, n, n, n, n, n, n, n), 2e-6);
  }
}

static double phi_cdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }

/* On a dense grid: gelu and its slope within 1e-6 of double precision, and gelu's left tail relatively too. */
static void test_gelu_accuracy(void **state) {
  enum { COUNT = 400001 };
  real *in = test_new(COUNT), *y = test_new(COUNT), *dx = test_new(COUNT), *one = test_new(COUNT);
  for (int i = 0; i < COUNT; i++) in[i] = (real)(-10 + 20.0 * i / (COUNT - 1)), one[i] = 1;
  TEST_EACH_ISA({
    ch_activate_args a = {.count = COUNT, .x = in, .y = y, .dy = one, .dx = dx};
    x.ops->activate(&x, &a);
    x.ops->activate_backward(&x, &a);
    double worst = 0, worst_tail = 0, worst_slope = 0;
    for (int i = 0; pass_ && i < COUNT; i++) {
      double at = (double)in[i], want = at * phi_cdf(at), slope = phi_cdf(at) + at * exp(-at * at / 2) / sqrt(2 * M_PI);
      worst = fmax(worst, fabs((double)y[i] - want));
      if (at < 0 && at > -5) worst_tail = fmax(worst_tail, fabs((double)y[i] / want - 1));
      worst_slope = fmax(worst_slope, fabs((double)dx[i] - slope));
      assert_false(isnan(y[i]) || isnan(dx[i]));
    }
    if (!(worst <= 5e-7 && worst_tail <= 3e-6 && worst_slope <= 5e-7))
      fail_msg("%s: gelu %.3g, its tail %.3g (relative), slope %.3g", test_isas[isa], worst, worst_tail, worst_slope);
  });
  free(in), free(y), free(dx), free(one);
}

/* Rounded on the way out: the same as rounded afterwards. */
static void test_gelu_rounded(void **state) {
  enum { COUNT = 3000 };
  real *in = test_new_normal(COUNT, 30), *dy = test_new_normal(COUNT, 31), *y = test_new(COUNT), *dx = test_new(COUNT);
  ch_bf16 y16[COUNT], dx16[COUNT];
  TEST_EACH_ISA({
    ch_activate_args a = {.count = COUNT, .x = in, .y = y, .dy = dy, .dx = dx};
    x.ops->activate(&x, &a);
    x.ops->activate_backward(&x, &a);
    a = (ch_activate_args){.count = COUNT, .x = in, .y16 = y16, .dy = dy, .dx16 = dx16};
    x.ops->activate(&x, &a);
    for (int i = 0; pass_ && i < COUNT; i++) assert_int_equal(y16[i], ch_bf16_round(y[i]));
    memset(y16, 0xff, sizeof y16);
    x.ops->activate_backward(&x, &a);
    for (int i = 0; pass_ && i < COUNT; i++) {
      assert_int_equal(y16[i], ch_bf16_round(y[i]));
      assert_int_equal(dx16[i], ch_bf16_round(dx[i]));
    }
  });
  free(in), free(dy), free(y), free(dx);
}

/* Backward gives the value with the slope, bit for bit, and one without the other; outputs may stand where inputs do.
 */
static void test_backward_gives_both(void **state) {
  enum { COUNT = 17000 };
  real *in = test_new_normal(COUNT, 30), *u = test_new_normal(COUNT, 31), *dy = test_new_normal(COUNT, 32);
  real *y = test_new(COUNT), *dx = test_new(COUNT), *a = test_new(COUNT), *b = test_new(COUNT), *c = test_new(COUNT);
  TEST_EACH_ISA({
    for (int kind = CH_GELU; kind <= CH_SWIGLU; kind++) {
      const ch_activation activation = (ch_activation)kind;
      x.ops->activate(&x, &(ch_activate_args){.activation = activation, .count = COUNT, .x = in, .u = u, .y = y});
      x.ops->activate_backward(
          &x,
          &(ch_activate_args){.activation = activation, .count = COUNT, .x = in, .u = u, .dy = dy, .dx = dx, .du = b});
      memcpy(a, in, COUNT * sizeof *a), memcpy(b, u, COUNT * sizeof *b), memcpy(c, dy, COUNT * sizeof *c);
      x.ops->activate_backward(
          &x, &(ch_activate_args){
                  .activation = activation, .count = COUNT, .x = a, .u = b, .dy = c, .y = a, .dx = c, .du = b});
      for (int i = 0; pass_ && i < COUNT; i++) assert_true(a[i] == y[i] && c[i] == dx[i]);
    }
  });
  free(in), free(u), free(dy), free(y), free(dx), free(a), free(b), free(c);
}

/* silu(x) = x s(x) and its slope s(x) (1 + x (1 - s(x))) on a grid, by the gate with u = 1; and far out. */
static void test_silu(void **state) {
  enum { COUNT = 40001 };
  real *in = test_new(COUNT), *y = test_new(COUNT), *dx = test_new(COUNT), *du = test_new(COUNT),
       *one = test_new(COUNT);
  static const float far[] = {1e30f, -1e30f, 0.0f, NAN};
  float end[4], slope[4], straight[4];
  for (int i = 0; i < COUNT; i++) in[i] = (real)(-30 + 60.0 * i / (COUNT - 1)), one[i] = 1;
  TEST_EACH_ISA({
    x.ops->activate_backward(
        &x, &(ch_activate_args){
                .activation = CH_SWIGLU, .count = COUNT, .x = in, .u = one, .dy = one, .y = y, .dx = dx, .du = du});
    for (int i = 0; pass_ && i < COUNT; i++) {
      double at = (double)in[i], s = 1 / (1 + exp(-at));
      assert_true(fabs((double)y[i] - at * s) <= 1e-6 * fabs(at * s));
      assert_true(fabs((double)dx[i] - s * (1 + at * (1 - s))) <= 2e-6);
      assert_true(du[i] == y[i]);
    }
    x.ops->activate_backward(
        &x,
        &(ch_activate_args){
            .activation = CH_SWIGLU, .count = 4, .x = far, .u = one, .dy = one, .y = end, .dx = slope, .du = straight});
    assert_true(!pass_ || (end[0] == 1e30f && end[1] == 0 && end[2] == 0 && isnan(end[3])));
    assert_true(!pass_ || (slope[0] == 1 && slope[1] == 0 && slope[2] == 0.5f && isnan(slope[3])));
  });
  free(in), free(y), free(dx), free(du), free(one);
}

/* Zeros keep their sign, tiny values are halved, large ones pass or vanish, NaN stays, gelu(-infinity) = -infinity * 0.
 */
static void test_gelu_extremes(void **state) {
  enum { COUNT = 12 };
  static const float in[COUNT] = {0.0f, -0.0f, 1e-30f, -1e-30f, 10, -10, 88, -88, 1e30f, -1e30f, INFINITY, NAN};
  static const float want[COUNT] = {0.0f, -0.0f, 5e-31f, -5e-31f, 10,       -7.62e-23f,
                                    88,   -0.0f, 1e30f,  -0.0f,   INFINITY, NAN};
  float y[COUNT], dx[COUNT], low = -INFINITY, ones[COUNT];
  for (int i = 0; i < COUNT; i++) ones[i] = 1;
  TEST_EACH_ISA({
    ch_activate_args a = {.count = COUNT, .x = in, .y = y, .dy = ones, .dx = dx};
    x.ops->activate(&x, &a);
    x.ops->activate_backward(&x, &a);
    for (int i = 0; pass_ && i < COUNT - 1; i++) {
      assert_true(signbit(y[i]) == signbit(want[i]));
      assert_true(y[i] == want[i] || fabsf(y[i] - want[i]) <= fmaxf(1e-6f * fabsf(want[i]), in[i] == -10 ? 1e-22f : 0));
      if (isfinite(in[i])) assert_true(fabsf(dx[i] - (fabsf(in[i]) < 1 ? 0.5f : in[i] > 0)) <= 1e-6f);
    }
    assert_true(!pass_ || (isnan(y[COUNT - 1]) && isnan(dx[COUNT - 1])));
    x.ops->activate(&x, &(ch_activate_args){.count = 1, .x = &low, .y = y});
    assert_true(!pass_ || isnan(y[0]));
  });
}

TEST_MAIN(NULL, NULL, test_gelu, test_gelu_accuracy, test_gelu_rounded, test_backward_gives_both, test_gelu_extremes,
          test_silu)
