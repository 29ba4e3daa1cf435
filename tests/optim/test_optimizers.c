/* Adafactor and AdamW: every variant against formulas written down naively in double, and the laws they keep. */
#include "optim/optim.h"
#include "variants.h"

enum { STEPS = 3 };

typedef struct {
  int64_t batch, rows, cols;
  int factored, rounded;
  double gradient_size; /* standard deviation of g; large ones let clipping work */
  real *g[STEPS + 1];   /* of each step, from 1 */
} shape;

static const double learning_rate = 0.05, beta2 = 0.99, eps1 = 1e-30, eps2 = 1e-3, clip = 0.9, grad_scale = 0.5;

static double beta2_at(int step) { return beta2 * (1 - pow(beta2, step - 1)) / (1 - pow(beta2, step)); }

/* Gradients of all steps: rows and columns of very different size, a sudden jump, one entry exactly 0. */
static void make_gradients(shape *s) {
  static const double of_column[] = {1, 10, 100};
  int64_t count = s->batch * s->rows * s->cols;
  for (int step = 1; step <= STEPS; step++) {
    real *g = s->g[step] = test_new_normal(count, (uint32_t)(100 + step));
    for (int64_t i = 0; i < count; i++)
      g[i] *=
          (real)(s->gradient_size * of_column[i % s->cols % 3] * (i / s->cols % 2 ? 0.1 : 1) * (step == 3 ? 30 : 1));
    g[0] = 0;
  }
}

static void free_gradients(shape *s) {
  for (int step = 1; step <= STEPS; step++) free(s->g[step]);
}

static ch_adafactor_args adafactor_args(const shape *s) {
  return (ch_adafactor_args){.batch = s->batch,
                             .rows = s->rows,
                             .cols = s->cols,
                             .learning_rate = learning_rate,
                             .eps1 = eps1,
                             .eps2 = eps2,
                             .clip = clip,
                             .grad_scale = grad_scale};
}

/* Out: w, row, col after some steps, and w16 as numbers. */
static void run_adafactor(ch_exec *x, const void *context, real *out) {
  const shape *s = context;
  int64_t count = s->batch * s->rows * s->cols, rows = s->batch * s->rows, cols = s->batch * s->cols;
  ch_bf16 *w16 = calloc((size_t)count, sizeof *w16);
  ch_adafactor_args a = adafactor_args(s);
  a.w = out, a.col = out + count, a.row = s->factored ? a.col + cols : NULL, a.w16 = s->rounded ? w16 : NULL;
  test_normal(a.w, count, 1);
  memset(a.col, 0, (size_t)(cols + (s->factored ? rows : 0)) * sizeof *out);
  for (int step = 1; step <= STEPS; step++) {
    a.g = s->g[step], a.beta2 = beta2_at(step);
    x->ops->adafactor(x, &a);
  }
  for (int64_t i = 0; s->rounded && i < count && !ch_counting(x); i++) assert_int_equal(w16[i], ch_bf16_round(a.w[i]));
  free(w16);
}

/* One matrix, one step, straight from the paper's algorithms 4 and 5. */
static void naive_adafactor(const shape *s, double b2, const real *gradient, double *w, double *row, double *col) {
  int64_t n = s->rows, m = s->cols;
  double *u = malloc((size_t)(n * m) * sizeof *u), rows = 0, w_squares = 0, u_squares = 0;
  for (int64_t i = 0; i < n * m; i++) u[i] = (double)gradient[i] * grad_scale;
  for (int64_t j = 0; j < m; j++) col[j] *= b2;
  for (int64_t i = 0; i < n; i++) {
    row[i] *= b2;
    for (int64_t j = 0; j < m; j++) {
      row[i] += (1 - b2) * (u[i * m + j] * u[i * m + j] + eps1) / (double)m;
      col[j] += (1 - b2) * (u[i * m + j] * u[i * m + j] + eps1) / (double)n;
    }
    rows += row[i];
  }
  for (int64_t i = 0; i < n * m; i++) {
    u[i] /= sqrt(s->factored ? row[i / m] * col[i % m] / (rows / (double)n) : col[i]);
    u_squares += u[i] * u[i];
    w_squares += w[i] * w[i];
  }
  double size = (double)(n * m), divisor = fmax(1, sqrt(u_squares / size) / clip);
  for (int64_t i = 0; i < n * m; i++) w[i] -= learning_rate * fmax(eps2, sqrt(w_squares / size)) * u[i] / divisor;
  free(u);
}

static void check_adafactor(shape *s) {
  make_gradients(s);
  int64_t size = s->rows * s->cols, count = s->batch * size, rows = s->batch * s->rows, cols = s->batch * s->cols;
  test_variants("adafactor", run_adafactor, s, s->factored ? TEST_PARTS(count, cols, rows) : TEST_PARTS(count, cols),
                1e-5);
  real *got = test_run_on("reference", "generic", 2, run_adafactor, s, count + cols + rows);
  double *w = calloc((size_t)(count + cols + rows), sizeof *w), *col = w + count, *row = col + cols;
  real *start = test_new_normal(count, 1), *want = test_new(count);
  for (int64_t i = 0; i < count; i++) w[i] = (double)start[i];
  for (int step = 1; step <= STEPS; step++) {
    for (int64_t b = 0; b < s->batch; b++)
      naive_adafactor(s, beta2_at(step), s->g[step] + b * size, w + b * size, row + b * s->rows, col + b * s->cols);
  }
  for (int64_t i = 0; i < count; i++) want[i] = (real)w[i];
  test_close(got, want, count, 1e-6);
  free(got), free(w), free(start), free(want);
  free_gradients(s);
}

static void test_adafactor(void **state) {
  shape shapes[] = {{1, 1, 1, 0, 0, 1, {0}},    {1, 1, 33, 0, 1, 1e-3, {0}}, {1, 5, 7, 1, 0, 1, {0}},
                    {3, 13, 17, 1, 1, 10, {0}}, {1, 300, 400, 1, 1, 1, {0}}, {27, 130, 301, 1, 0, 1e-6, {0}}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_adafactor(&shapes[i]);
}

/* Each matrix of a batch is treated by itself: alone it gets the same bits. A scale of 1/4 undoes a gradient 4 times as
 * large. */
static void test_adafactor_laws(void **state) {
  enum { BATCH = 3, ROWS = 70, COLS = 45, SIZE = ROWS * COLS };
  shape s = {BATCH, ROWS, COLS, 1, 0, 1, {0}};
  make_gradients(&s);
  real *g = s.g[1], *together = test_new_normal(BATCH * SIZE, 1), *alone = test_new_normal(BATCH * SIZE, 1);
  real row[BATCH * ROWS] = {0}, col[BATCH * COLS] = {0}, row1[ROWS], col1[COLS];
  TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, {
    ch_adafactor_args a = adafactor_args(&s);
    a.w = together, a.g = g, a.row = row, a.col = col, a.grad_scale = 1;
    x.ops->adafactor(&x, &a);
    for (int64_t i = 0; pass_ && i < BATCH * SIZE; i++) g[i] *= 4;
    for (int b = 0; b < BATCH; b++) {
      memset(row1, 0, sizeof row1), memset(col1, 0, sizeof col1);
      a.batch = 1, a.w = alone + b * SIZE, a.g = g + b * SIZE, a.row = row1, a.col = col1, a.grad_scale = 0.25;
      x.ops->adafactor(&x, &a);
    }
  });
  assert_memory_equal(together, alone, BATCH * SIZE * sizeof *alone);
  free_gradients(&s);
  free(together), free(alone);
}

/* Out: w, m, v. */
static void run_adamw(ch_exec *x, const void *context, real *out) {
  const shape *s = context;
  ch_bf16 *w16 = calloc((size_t)s->cols, sizeof *w16);
  test_normal(out, s->cols, 1);
  memset(out + s->cols, 0, (size_t)(2 * s->cols) * sizeof *out);
  for (int step = 1; step <= STEPS; step++)
    x->ops->adamw(x, &(ch_adamw_args){.count = s->cols,
                                      .w = out,
                                      .g = s->g[step],
                                      .m = out + s->cols,
                                      .v = out + 2 * s->cols,
                                      .step = step,
                                      .learning_rate = learning_rate,
                                      .beta1 = 0.9,
                                      .beta2 = beta2,
                                      .eps = 1e-8,
                                      .weight_decay = 0.1,
                                      .grad_scale = grad_scale,
                                      .w16 = s->rounded ? w16 : NULL});

  for (int64_t i = 0; s->rounded && i < s->cols && !ch_counting(x); i++)
    assert_int_equal(w16[i], ch_bf16_round(out[i]));
  free(w16);
}

/* AdamW as PyTorch writes it: decay first, then the bias-corrected step. */
static void naive_adamw(const shape *s, real *out) {
  for (int64_t i = 0; i < s->cols; i++) {
    double w = (double)out[i], m = 0, v = 0;
    for (int step = 1; step <= STEPS; step++) {
      double g = (double)s->g[step][i] * grad_scale;
      w *= 1 - learning_rate * 0.1;
      m = 0.9 * m + 0.1 * g;
      v = beta2 * v + (1 - beta2) * g * g;
      w -= learning_rate * (m / (1 - pow(0.9, step))) / (sqrt(v / (1 - pow(beta2, step))) + 1e-8);
    }
    out[i] = (real)w;
  }
}

static void test_adamw(void **state) {
  static const int64_t counts[] = {1, 100, 3 * 16384 + 5};
  for (int i = 0; i < 3; i++) {
    int64_t n = counts[i];
    shape s = {1, 1, n, 0, i > 0, 1, {0}};
    make_gradients(&s);
    test_variants("adamw", run_adamw, &s, TEST_PARTS(n, n, n), 3e-6);
    real *got = test_run_on("reference", "generic", 2, run_adamw, &s, 3 * n), *want = test_new_normal(n, 1);
    naive_adamw(&s, want);
    test_close(got, want, n, 1e-6);
    free(got), free(want);
    free_gradients(&s);
  }
}

/* NaN in a gradient is not hidden: it reaches the weights. */
static void test_nan(void **state) {
  enum { ROWS = 3, COLS = 5, COUNT = ROWS * COLS };
  real g[COUNT], w[COUNT], row[ROWS] = {0}, col[COLS] = {0}, m[COUNT] = {0}, v[COUNT] = {0};
  test_normal(g, COUNT, 2);
  g[7] = NAN;
  for (int isa = 0; isa < TEST_ISAS; isa++) {
    test_use_isa(test_isas[isa]);
    TEST_EXEC("cpu", CH_COMPUTE_FP32, 1, {
      shape s = {1, ROWS, COLS, 1, 0, 1, {0}};
      ch_adafactor_args a = adafactor_args(&s);
      a.w = w, a.g = g, a.row = row, a.col = col;
      test_normal(w, COUNT, 1);
      x.ops->adafactor(&x, &a);
      assert_true(!pass_ || isnan(w[7]));
      test_normal(w, COUNT, 1);
      x.ops->adamw(&x,
                   &(ch_adamw_args){
                       .count = COUNT, .w = w, .g = g, .m = m, .v = v, .step = 1, .learning_rate = 1, .grad_scale = 1});
      assert_true(!pass_ || (isnan(w[7]) && !isnan(w[6])));
    });
    unsetenv("CHOIR_ISA");
  }
}

/* Training asks this of every optimizer in the table: from a state of zeros, of the size that it says, it brings a
 * vector, a matrix and a batch of them nearer to a target. */
static void check_optim(const ch_optim *optim, ch_optim_tensor t) {
  enum { MAX = 2 * 5 * 7, BEYOND = 16, WALK = 40 };
  int64_t count = t.batch * t.rows * t.cols;
  ch_train_config config = {.beta1 = 0.9, .beta2 = 0.99};
  real w[MAX], g[MAX], target[MAX], state[CH_OPTIM_STATES][MAX + BEYOND] = {{0}};
  test_normal(w, count, 1);
  test_normal(target, count, 2);
  double before = 0, after = 0;
  for (int64_t i = 0; i < count; i++) before += fabs((double)(w[i] - target[i]));
  t.w = w, t.g = g;
  optim->shape(&t);
  for (int j = 0; j < CH_OPTIM_STATES; j++) {
    assert_in_range(t.state_count[j], 0, MAX);
    if (t.state_count[j]) t.state[j] = state[j];
    test_poison(state[j] + t.state_count[j], BEYOND);
  }
  TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, {
    for (int step = 1; step <= WALK; step++) {
      for (int64_t i = 0; i < count; i++) g[i] = w[i] - target[i];
      optim->step(
          &x, &(ch_optim_args){.config = &config, .tensor = &t, .step = step, .learning_rate = 0.02, .grad_scale = 1});
    }
  });
  for (int64_t i = 0; i < count; i++) after += fabs((double)(w[i] - target[i]));
  if (!(after < 0.8 * before)) fail_msg("%s: %g from the target, %g before", optim->name, after, before);
  for (int j = 0; j < CH_OPTIM_STATES; j++)
    for (int i = 0; i < BEYOND; i++) assert_true(isnan(state[j][t.state_count[j] + i]));
}

static void test_table(void **state) {
  static const ch_optim_tensor shapes[] = {
      {.batch = 1, .rows = 1, .cols = 9}, {.batch = 1, .rows = 5, .cols = 7}, {.batch = 2, .rows = 5, .cols = 7}};
  for (int k = 0; ch_optims[k]; k++) {
    assert_string_equal(ch_optims[k]->name, ch_optim_names[k]);
    assert_ptr_equal(ch_optim_find(ch_optim_names[k]), ch_optims[k]);
    for (int i = 0; i < 3; i++) check_optim(ch_optims[k], shapes[i]);
  }
  assert_null(ch_optim_find("adamv"));
  assert_non_null(strstr(choir_error_message(), "did you mean 'adamw'"));
}

/* The update is skipped if *finite is not a finite number; a finite one changes no bit of the update. */
static void test_finite(void **state) {
  enum { ROWS = 6, COLS = 5, COUNT = ROWS * COLS };
  static const char *const backends[] = {"reference", "cpu"};
  for (int b = 0; b < 2; b++)
    for (int which = 0; which < 2; which++) {
      real *w = test_new_normal(COUNT, 1), *same = test_new_normal(COUNT, 1), *g = test_new_normal(COUNT, 2);
      real *first = test_new(COUNT), *second = test_new(COUNT);
      double finite = (double)NAN;
      ch_adafactor_args f = {.batch = 1,
                             .rows = ROWS,
                             .cols = COLS,
                             .w = w,
                             .g = g,
                             .row = first,
                             .col = second,
                             .learning_rate = 0.1,
                             .beta2 = 0.9,
                             .eps1 = 1e-30,
                             .eps2 = 1e-3,
                             .clip = 1,
                             .grad_scale = 1,
                             .finite = &finite};
      ch_adamw_args a = {.count = COUNT,
                         .w = w,
                         .g = g,
                         .m = first,
                         .v = second,
                         .step = 1,
                         .learning_rate = 0.1,
                         .beta1 = 0.9,
                         .beta2 = 0.9,
                         .eps = 1e-8,
                         .grad_scale = 1,
                         .finite = &finite};
      for (int round = 0; round < 3; round++) {
        finite = round == 0 ? (double)NAN : round == 1 ? (double)INFINITY : 3;
        TEST_EXEC(backends[b], CH_COMPUTE_FP32, 2, {
          if (which)
            x.ops->adamw(&x, &a);
          else
            x.ops->adafactor(&x, &f);
        });
        int changed = memcmp(w, same, sizeof *w * COUNT) != 0 || first[0] != 0 || second[0] != 0;
        assert_int_equal(changed, round == 2);
      }
      free(w), free(same), free(g), free(first), free(second);
    }
}

/* An optimizer of the table is its op with the constants of the paper; vectors do not decay. The first weights are so
 * small that eps2 sets the step, and the second gradient so large that it is clipped. */
static void test_constants(void **state) {
  enum { COLS = 5, COUNT = 6 * COLS };
  const ch_train_config c = {.beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1};
  for (int rows = 1; rows <= 6; rows += 5)
    for (int which = 0; which < 2; which++) {
      const ch_optim *kind = ch_optim_find(which ? "adamw" : "adafactor");
      real *w = test_new_normal(COUNT, 1), *want = test_new(COUNT), *g = test_new_normal(COUNT, 2), *moment[4];
      for (int i = 0; i < COUNT && !which; i++) w[i] *= (real)1e-4;
      for (int i = 0; i < 4; i++) moment[i] = test_new(COUNT);
      memcpy(want, w, COUNT * sizeof *w);
      ch_optim_tensor t = {.batch = 1, .rows = rows, .cols = COLS, .all_cols = COLS, .w = w, .g = g};
      kind->shape(&t);
      for (int i = 0; i < 2; i++) t.state[i] = t.state_count[i] ? moment[i] : NULL;
      for (int64_t step = 1; step < 100; step += 50) {
        double power = pow(c.beta2, (double)step), scale = step > 1 ? 10 : 1;
        ch_optim_args a = {.config = &c, .tensor = &t, .step = step, .learning_rate = 0.02, .grad_scale = scale};
        ch_adafactor_args f = {.batch = 1,
                               .rows = rows,
                               .cols = COLS,
                               .w = want,
                               .g = g,
                               .row = rows > 1 ? moment[2] : NULL,
                               .col = moment[3],
                               .learning_rate = 0.02,
                               .beta2 = (c.beta2 - power) / (1 - power),
                               .eps1 = 1e-30,
                               .eps2 = 1e-3,
                               .clip = 1,
                               .grad_scale = scale};
        ch_adamw_args adamw = {.count = rows * COLS,
                               .w = want,
                               .g = g,
                               .m = moment[2],
                               .v = moment[3],
                               .step = step,
                               .learning_rate = 0.02,
                               .beta1 = c.beta1,
                               .beta2 = c.beta2,
                               .eps = 1e-8,
                               .weight_decay = rows > 1 ? c.weight_decay : 0,
                               .grad_scale = scale};
        TEST_EXEC("reference", CH_COMPUTE_FP32, 1, { kind->step(&x, &a); });
        TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
          if (which)
            x.ops->adamw(&x, &adamw);
          else
            x.ops->adafactor(&x, &f);
        });
        test_close(w, want, rows * COLS, 1e-6);
      }
      free(w), free(want), free(g);
      for (int i = 0; i < 4; i++) free(moment[i]);
    }
}

TEST_MAIN(NULL, NULL, test_constants, test_adafactor, test_adafactor_laws, test_adamw, test_nan, test_table,
          test_finite)
