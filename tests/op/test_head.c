/* The fast head against naive loops in double, in both compute types, over chunks and threads. */
#include "testing.h"

typedef struct {
  int64_t n;
  int d, V;
} shape;
static const shape shapes[] = {{1, 8, 5},
                               {0, 8, 16},
                               {70, 32, 1000},
                               {1030, 16, 37},
                               {TEST_ROWS(530), 40, 3000},
                               {TEST_ROWS(1100), 260, 200},
                               {TEST_ROWS(300), 72, 3071}};

typedef struct {
  double loss;
  float *token_loss;
  real *logits, *dx, *dw;
} results;

static real input(ch_compute compute, real x) {
  return compute == CH_COMPUTE_BF16 ? ch_bf16_value(ch_bf16_round(x)) : x;
}

static int32_t target_of(int64_t i, int V) { return i % 7 == 4 ? -1 : (int32_t)((i * 31) % V); }

/* Of rows' losses, while a test says so. */
static int weighted;
static float row_weight(int64_t i) { return weighted ? (float)(i % 11) / 4 : 1; }

static results new_results(shape s) {
  results r = {(double)NAN, calloc((size_t)s.n + 1, sizeof(float)), test_new(s.n * s.V), test_new(s.n * s.d),
               test_new((int64_t)s.V * s.d)};
  test_poison(r.logits, s.n * s.V), test_poison(r.dx, s.n * s.d), test_poison(r.token_loss, s.n);
  test_poison(r.dw, (int64_t)s.V * s.d);
  return r;
}

static void free_results(results *r) { free(r->token_loss), free(r->logits), free(r->dx), free(r->dw); }

static const real scale = (real)0.2, weight = (real)0.01;

/* Straight from the definition, in double but for the rounding of products' inputs. */
static results naive(ch_compute compute, shape s, const real *x, const real *w) {
  results r = new_results(s);
  double *dw = calloc((size_t)s.V * (size_t)s.d, sizeof *dw), *logit = calloc((size_t)s.V, sizeof *logit);
  r.loss = 0;
  for (int64_t i = 0; i < s.n; i++) {
    double sum = 0, dx[512] = {0};
    int32_t target = target_of(i, s.V);
    for (int v = 0; v < s.V; v++) {
      logit[v] = 0;
      for (int c = 0; c < s.d; c++)
        logit[v] += (double)input(compute, x[i * s.d + c]) * (double)input(compute, w[v * s.d + c]);
      r.logits[i * s.V + v] = (real)(logit[v] *= (double)scale);
      sum += exp(logit[v]);
    }
    r.token_loss[i] = target < 0 ? 0 : (float)(log(sum) - logit[target]);
    if (target >= 0) r.loss += (double)row_weight(i) * (log(sum) - logit[target]);
    for (int v = 0; v < s.V && target >= 0; v++) {
      double g = (double)row_weight(i) * (double)weight * (double)scale * (exp(logit[v]) / sum - (v == target));
      for (int c = 0; c < s.d; c++) {
        dx[c] += g * (double)input(compute, w[v * s.d + c]);
        dw[v * s.d + c] += g * (double)x[i * s.d + c];
      }
    }
    for (int c = 0; c < s.d; c++) r.dx[i * s.d + c] = (real)dx[c];
  }
  for (int64_t i = 0; i < (int64_t)s.V * s.d; i++) r.dw[i] = (real)dw[i];
  free(dw), free(logit);
  return r;
}

/* The whole op: loss, logits and gradients, into r. */
static ch_head_args head_args(shape s, results *r, const real *x_in, const real *w, const int32_t *target) {
  return (ch_head_args){.n = s.n,
                        .d = s.d,
                        .V = s.V,
                        .scale = scale,
                        .x = x_in,
                        .w = w,
                        .target = target,
                        .loss_sum = &r->loss,
                        .token_loss = r->token_loss,
                        .logits = r->logits,
                        .weight = weight,
                        .dx = r->dx,
                        .dw = r->dw};
}

static results run_head(const char *backend, ch_compute compute, int threads, shape s, const real *x_in, const real *w,
                        const ch_bf16 *w16, int gradients, int accumulate) {
  results r = new_results(s);
  if (accumulate) test_normal(r.dw, (int64_t)s.V * s.d, 3);
  int32_t *target = calloc((size_t)s.n + 1, sizeof *target);
  for (int64_t i = 0; i < s.n; i++) target[i] = target_of(i, s.V);
  ch_head_args a = head_args(s, &r, x_in, w, target);
  float *weights = calloc((size_t)s.n + 1, sizeof *weights);
  for (int64_t i = 0; i < s.n; i++) weights[i] = row_weight(i);
  if (weighted) a.row_weight = weights;
  a.w16 = w16;
  a.accumulate = accumulate;
  if (!gradients) a.dx = NULL;
  TEST_EXEC(backend, compute, threads, x.ops->head(&x, &a));
  free(target), free(weights);
  return r;
}

static void check_close(shape s, const results *got, const results *want, double tolerance, int gradients) {
  assert_true(fabs(got->loss - want->loss) <= 1e-6 * fmax(1, fabs(want->loss)));
  test_close(got->token_loss, want->token_loss, s.n, 1e-5);
  test_close(got->logits, want->logits, s.n * s.V, 1e-5);
  if (gradients) {
    test_close(got->dx, want->dx, s.n * s.d, tolerance);
    test_close(got->dw, want->dw, (int64_t)s.V * s.d, tolerance);
  }
}

static void check_head(const char *backend, ch_compute compute, shape s, double tolerance) {
  real *x = test_new_normal(s.n * s.d, 1), *w = test_new_normal((int64_t)s.V * s.d, 2);
  ch_bf16 *w16 = calloc((size_t)s.V * (size_t)s.d, sizeof *w16);
  for (int64_t i = 0; i < (int64_t)s.V * s.d; i++) w16[i] = ch_bf16_round(w[i]);
  results want = naive(compute, s, x, w), one = run_head(backend, compute, 1, s, x, w, NULL, 1, 0);
  check_close(s, &one, &want, tolerance, 1);
  const int threads[] = {3, 16}; /* from four on they work on several small chunks at once */
  for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
    results r = run_head(backend, compute, threads[t], s, x, w, w16, 1, 0);
    assert_memory_equal(&r.loss, &one.loss, sizeof r.loss);
    assert_memory_equal(r.dx, one.dx, (size_t)(s.n * s.d) * sizeof(real));
    assert_memory_equal(r.dw, one.dw, (size_t)s.V * (size_t)s.d * sizeof(real));
    free_results(&r);
  }
  results forward = run_head(backend, compute, 2, s, x, w, NULL, 0, 0);
  check_close(s, &forward, &want, tolerance, 0);
  results sum = run_head(backend, compute, 2, s, x, w, NULL, 1, 1);
  real *before = test_new_normal((int64_t)s.V * s.d, 3);
  for (int64_t i = 0; i < (int64_t)s.V * s.d; i++) want.dw[i] += before[i];
  check_close(s, &sum, &want, tolerance, 1);
  free_results(&want), free_results(&one), free_results(&forward), free_results(&sum);
  free(x), free(w), free(w16), free(before);
}

static void all_shapes(const char *backend, ch_compute compute, double tolerance) {
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_head(backend, compute, shapes[i], tolerance);
}

/* Rows with weights of their own. */
static void weighted_rows(void **state) {
  weighted = 1;
  all_shapes("reference", CH_COMPUTE_FP32, 1e-5);
  all_shapes("cpu", CH_COMPUTE_FP32, 1e-5);
  weighted = 0;
}

static void reference(void **state) { (void)state, all_shapes("reference", CH_COMPUTE_FP32, 1e-5); }
static void fp32(void **state) { (void)state, all_shapes("cpu", CH_COMPUTE_FP32, 1e-5); }
static void bf16(void **state) {
  (void)state, all_shapes("cpu", CH_COMPUTE_BF16, 5e-3);
} /* gradients are rounded once more */

/* Rows 0 .. n/2-1 and their partners, with and without a target, over several chunks: everything that the op says. */
typedef struct {
  results r;
  double disagreement;
} paired_results;

static paired_results run_pairs(const char *backend, ch_compute compute, int threads, shape s, const real *x_in,
                                const real *w, real consistency) {
  paired_results p = {new_results(s), (double)NAN};
  int32_t *target = calloc((size_t)s.n, sizeof *target);
  for (int64_t i = 0; i < s.n; i++) target[i] = target_of(i % (s.n / 2), s.V);
  ch_head_args a = head_args(s, &p.r, x_in, w, target);
  a.paired = 1;
  a.consistency_sum = &p.disagreement;
  a.consistency = consistency;
  TEST_EXEC(backend, compute, threads, x.ops->head(&x, &a));
  free(target);
  return p;
}

/* The reference, whose gradients grad_head checks, and the fast head; one thread and several; equal partners,
 * whose disagreement is 0 and whose gradient is the loss's alone. */
static void check_pairs(shape s) {
  real *x = test_new_normal(s.n * s.d, 1), *w = test_new_normal((int64_t)s.V * s.d, 2);
  paired_results want = run_pairs("reference", CH_COMPUTE_FP32, 2, s, x, w, (real)0.03),
                 rounded = run_pairs("cpu", CH_COMPUTE_BF16, 2, s, x, w, (real)0.03);
  assert_true(want.disagreement > 0.1 * (double)s.n);
  assert_true(fabs(rounded.disagreement / want.disagreement - 1) < 0.02);
  test_close(rounded.r.dx, want.r.dx, s.n * s.d, 0.02);
  for (int threads = 1; threads <= 3; threads++) {
    paired_results p = run_pairs("cpu", CH_COMPUTE_FP32, threads, s, x, w, (real)0.03);
    assert_true(fabs(p.disagreement / want.disagreement - 1) < 1e-5);
    check_close(s, &p.r, &want.r, 2e-5, 1);
    free_results(&p.r);
  }
  memcpy(x + s.n / 2 * s.d, x, (size_t)(s.n / 2 * s.d) * sizeof *x);
  paired_results equal = run_pairs("cpu", CH_COMPUTE_FP32, 2, s, x, w, (real)0.03),
                 alone = run_pairs("cpu", CH_COMPUTE_FP32, 2, s, x, w, 0);
  assert_true(fabs(equal.disagreement) < 1e-5);
  check_close(s, &equal.r, &alone.r, 1e-5, 1);
  free_results(&want.r), free_results(&rounded.r), free_results(&equal.r), free_results(&alone.r), free(x), free(w);
}

static void pairs(void **state) {
  check_pairs((shape){70, 32, 1000});
  check_pairs((shape){1030, 16, 37});
  check_pairs((shape){2 * TEST_ROWS(265), 40, 3000}); /* pairs: an even number */
  check_pairs((shape){TEST_ROWS(1100), 260, 200});
}

/* A NaN in the hidden state shows in the loss, not only in a row that nobody looks at. */
static void nan_reaches_the_loss(void **state) {
  shape s = {20, 8, 50};
  real *x = test_new_normal(s.n * s.d, 1), *w = test_new_normal((int64_t)s.V * s.d, 2);
  x[3] = (real)NAN;
  results r = run_head("cpu", CH_COMPUTE_FP32, 2, s, x, w, NULL, 1, 0);
  assert_true(isnan(r.loss));
  free_results(&r), free(x), free(w);
}

TEST_MAIN(NULL, NULL, weighted_rows, reference, fp32, bf16, pairs, nan_reaches_the_loss)
