/* Softmax, sigmoid, sums, norms and embedding: every variant against the reference, and the laws they keep. */
#include "variants.h"

typedef struct {
  int64_t n;
  int d, accumulate;
} shape;

static void run_softmax(ch_exec *x, const void *context, real *out) {
  const shape *s = context;
  int64_t count = s->n * s->d;
  real *in = test_new_normal(count, 1), *dy = test_new_normal(count, 2);
  for (int64_t i = 0; i < count; i++) in[i] *= 2;
  ch_softmax_args a = {.n = s->n, .m = s->d, .x = in, .y = out, .dy = dy, .dx = out + count};
  x->ops->softmax(x, &a);
  x->ops->softmax_backward(x, &a);
  free(in), free(dy);
}

static void test_softmax(void **state) {
  static const shape shapes[] = {{1, 1, 0}, {5, 2, 0}, {7, 16, 0}, {37, 33, 0}, {700, 128, 0}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    int64_t count = shapes[i].n * shapes[i].d;
    test_variants("softmax", run_softmax, &shapes[i], TEST_PARTS(count, count), 2e-6);
  }
}

static void run_sigmoid(ch_exec *x, const void *context, real *out) {
  int64_t count = *(const int64_t *)context;
  real *in = test_new_normal(count, 1), *dy = test_new_normal(count, 2);
  for (int64_t i = 0; i < count; i++) in[i] *= 8;
  ch_sigmoid_args a = {.count = count, .x = in, .y = out, .dy = dy, .dx = out + count};
  x->ops->sigmoid(x, &a);
  x->ops->sigmoid_backward(x, &a);
  free(in), free(dy);
}

static void test_sigmoid(void **state) {
  static const int64_t counts[] = {1, 7, 1000, 3 * 16384 + 13};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    test_variants("sigmoid", run_sigmoid, &counts[i], TEST_PARTS(counts[i], counts[i]), 2e-6);
}

/* Far ends become 0 and 1, without a NaN that was not there; the small values keep their digits. */
static void test_sigmoid_extremes(void **state) {
  enum { COUNT = 8 };
  static const float in[COUNT] = {0, -20, -80, 20, -1e30f, -INFINITY, INFINITY, NAN};
  static const double want[COUNT] = {0.5, 2.0611536e-9, 1.8048514e-35, 1, 0, 0, 1, 0};
  float y[COUNT];
  TEST_EACH_ISA({
    x.ops->sigmoid(&x, &(ch_sigmoid_args){.count = COUNT, .x = in, .y = y});
    for (int i = 0; pass_ && i < COUNT - 1; i++) assert_true(fabs((double)y[i] - want[i]) <= 1e-6 * want[i]);
    assert_true(!pass_ || isnan(y[COUNT - 1]));
  });
}

static void run_rmsnorm(ch_exec *x, const void *context, real *out) {
  const shape *s = context;
  int64_t count = s->n * s->d;
  real *in = test_new_normal(count, 6), *w = test_new_normal(s->d, 7), *dy = test_new_normal(count, 8);
  ch_rmsnorm_args a = {.n = s->n, .d = s->d, .eps = 1e-6f, .x = in, .w = w, .dy = dy, .dx_acc = s->accumulate};
  a.y = out, a.rstd = out + count, a.dx = a.rstd + s->n, a.dw = a.dx + count;
  for (int64_t i = 0; s->accumulate && i < count; i++) a.dx[i] = 3;
  for (int j = 0; j < s->d; j++) a.dw[j] = 5;
  x->ops->rmsnorm(x, &a);
  x->ops->rmsnorm_backward(x, &a);
  free(in), free(w), free(dy);
}

static void test_rmsnorm(void **state) {
  static const shape shapes[] = {{1, 2, 0}, {3, 7, 1}, {65, 64, 0}, {130, 33, 1}, {300, 129, 0}, {300, 129, 1}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    int64_t n = shapes[i].n, d = shapes[i].d;
    test_variants("rmsnorm", run_rmsnorm, &shapes[i], TEST_PARTS(n * d, n, n * d, d), 3e-6);
  }
}

enum { V = 50 };

static void run_embedding(ch_exec *x, const void *context, real *out) {
  const shape *s = context;
  int64_t count = s->n * s->d, words = V * (int64_t)s->d;
  int32_t *token = malloc((size_t)s->n * sizeof *token);
  for (int64_t t = 0; t < s->n; t++)
    token[t] = (int32_t)ch_rng_below(ch_rng_make(9, CH_STREAM_TEST, 0), (uint64_t)(t / 2), V); /* each twice in a row */
  real *w = test_new_normal(words, 10), *dx = test_new_normal(count, 11);
  ch_embedding_args a = {.n = s->n, .d = s->d, .V = V, .token = token, .w = w, .dx = dx, .x = out, .dw = out + count};
  for (int64_t i = 0; i < words; i++) a.dw[i] = 5;
  x->ops->embedding(x, &a);
  x->ops->embedding_backward(x, &a);
  free(token), free(w), free(dx);
}

static void test_embedding(void **state) {
  static const shape shapes[] = {{1, 1, 0}, {40, 7, 0}, {1000, 33, 0}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    int64_t n = shapes[i].n, d = shapes[i].d;
    test_variants("embedding", run_embedding, &shapes[i], TEST_PARTS(n * d, V * d), 2e-6);
  }
}

static void run_sums(ch_exec *x, const void *context, real *out) {
  int64_t n = ((const shape *)context)->n;
  real *in = test_new_normal(n, 12);
  double sum = NAN;
  x->ops->copy(x, &(ch_copy_args){.count = n, .x = in, .y = out});
  x->ops->copy(x, &(ch_copy_args){.count = n, .y = out + 2 * n + 1});
  for (int64_t i = 0; !ch_counting(x) && i < n; i++) assert_true(out[i] == in[i] && out[2 * n + 1 + i] == 0);
  x->ops->sumsq(x, &(ch_sumsq_args){.arrays = 1, .count = n, .x = in, .sum = &sum});
  out[n] = (real)sum;
  ch_bf16 *rounded = calloc((size_t)n, sizeof *rounded);
  x->ops->round_bf16(x, &(ch_round_args){.count = n, .x = in, .y = rounded});
  x->ops->widen_bf16(x, &(ch_widen_args){.count = n, .x = rounded, .y = out + n + 1});
  for (int64_t i = 0; !ch_counting(x) && i < n; i++) assert_true(out[n + 1 + i] == ch_bf16_value(ch_bf16_round(in[i])));
  free(in), free(rounded);
}

static void test_sums(void **state) {
  static const int64_t counts[] = {1, 15, 16384, 5 * 16384 + 77};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    int64_t n = counts[i];
    test_variants("copy, sumsq, round_bf16, widen_bf16", run_sums, &(shape){.n = n}, TEST_PARTS(n, 1, n, n), 1e-7);
  }
}

/* An element's result does not depend on its neighbours, its place or its address. */
static void test_place(void **state) {
  enum { COUNT = 100, D = 100 };
  real *in = test_new_normal(COUNT + 16, 20), *y = test_new(COUNT), *dx = test_new(COUNT),
       *dy = test_new_normal(COUNT, 21);
  real *w = test_new_normal(D + 16, 22), *kept = test_new(D), *moved = test_new(D + 16), rstd, dw[D];
  TEST_EACH_ISA({
    x.ops->activate(&x, &(ch_activate_args){.count = COUNT, .x = in, .y = y});
    x.ops->activate_backward(&x, &(ch_activate_args){.count = COUNT, .x = in, .dy = dy, .dx = dx});
    for (int i = 0; pass_ && i < COUNT; i++) {
      real y1, dx1;
      x.ops->activate(&x, &(ch_activate_args){.count = 1, .x = in + i, .y = &y1});
      x.ops->activate_backward(&x, &(ch_activate_args){.count = 1, .x = in + i, .dy = dy + i, .dx = &dx1});
      assert_true(y1 == y[i] && dx1 == dx[i]);
    }
    for (int shift = 0; shift < 16; shift++) {
      memmove(moved + shift, in, D * sizeof(real));
      real *out = test_new(D + 16);
      x.ops->softmax(&x, &(ch_softmax_args){.n = 1, .m = D, .x = moved + shift, .y = out + shift});
      ch_rmsnorm_args a = {
          .n = 1, .d = D, .eps = 1e-6f, .x = moved + shift, .w = w, .y = out + shift, .rstd = &rstd, .dw = dw};
      a.dy = out + shift, a.dx = dx;
      x.ops->rmsnorm(&x, &a);
      x.ops->rmsnorm_backward(&x, &a);
      if (!shift) memcpy(kept, dx, sizeof dw);
      assert_memory_equal(kept, dx, sizeof dw);
      free(out);
    }
  });
  free(in), free(y), free(dx), free(dy), free(w), free(kept), free(moved);
}

/* Outputs over inputs where the contract allows it. */
static void test_in_place(void **state) {
  enum { N = 33, M = 17, COUNT = N * M };
  real *in = test_new_normal(COUNT, 30), *u = test_new_normal(COUNT, 31), *dy = test_new_normal(COUNT, 32);
  real *dx = test_new(COUNT), *du = test_new(COUNT), *a = test_new(COUNT), *b = test_new(COUNT), *c = test_new(COUNT);
  TEST_EACH_ISA({
    x.ops->activate_backward(
        &x, &(ch_activate_args){.activation = CH_GEGLU, .count = COUNT, .x = in, .u = u, .dy = dy, .dx = dx, .du = du});
    for (int order = 0; pass_ && order < 3; order++) {
      memcpy(a, in, COUNT * sizeof *a), memcpy(b, u, COUNT * sizeof *b), memcpy(c, dy, COUNT * sizeof *c);
      real *to_x = order == 0 ? a : order == 1 ? b : c, *to_u = order == 0 ? b : order == 1 ? c : a;
      x.ops->activate_backward(
          &x,
          &(ch_activate_args){.activation = CH_GEGLU, .count = COUNT, .x = a, .u = b, .dy = c, .dx = to_x, .du = to_u});
      assert_memory_equal(to_x, dx, COUNT * sizeof *a);
      assert_memory_equal(to_u, du, COUNT * sizeof *a);
    }
    x.ops->softmax(&x, &(ch_softmax_args){.n = N, .m = M, .x = in, .y = dx});
    memcpy(a, in, COUNT * sizeof *a);
    x.ops->softmax(&x, &(ch_softmax_args){.n = N, .m = M, .x = a, .y = a});
    assert_memory_equal(a, pass_ ? dx : in, COUNT * sizeof *a);
  });
  free(in), free(u), free(dy), free(dx), free(du), free(a), free(b), free(c);
}

/* Softmax: rows sum to 1 also for huge logits, -infinity gets 0, NaN spoils its own row only. */
static void test_softmax_laws(void **state) {
  enum { M = 20 };
  real in[3 * M], y[3 * M];
  for (int j = 0; j < M; j++)
    in[j] = 1e30f, in[M + j] = j ? -1000.0f * (real)j : NAN, in[2 * M + j] = j % 2 ? (real)j : -INFINITY;
  TEST_EACH_ISA({
    x.ops->softmax(&x, &(ch_softmax_args){.n = 3, .m = M, .x = in, .y = y});
    double sum = 0;
    for (int j = 0; pass_ && j < M; j++) {
      assert_true(fabsf(y[j] - 1.0f / M) < 1e-7f);
      assert_true(isnan(y[M + j]));
      assert_true(j % 2 ? y[2 * M + j] > 0 : y[2 * M + j] == 0);
      sum += (double)y[2 * M + j];
    }
    assert_true(!pass_ || fabs(sum - 1) < 1e-6);
  });
}

/* Null logits are columns of 0 that are not written, also far below and above the others. */
static void test_softmax_with_nulls(void **state) {
  enum { ROWS = 40, M = 21, NULLS = 3, ALL = M + NULLS };
  real *in = test_new_normal(ROWS * M, 33), *y = test_new(ROWS * M);
  real *wide = calloc(ROWS * ALL, sizeof *wide), *all = test_new(ROWS * ALL);
  for (int t = 0; t < ROWS; t++)
    for (int j = 0; j < M; j++) wide[t * ALL + j] = in[t * M + j] += 4 * (real)(t - ROWS / 2);
  TEST_EACH_ISA({
    x.ops->softmax(&x, &(ch_softmax_args){.n = ROWS, .m = M, .nulls = NULLS, .x = in, .y = y});
    x.ops->softmax(&x, &(ch_softmax_args){.n = ROWS, .m = ALL, .x = wide, .y = all});
    for (int t = 0; pass_ && t < ROWS; t++) test_close(y + t * M, all + t * ALL, M, 1e-6);
  });
  free(in), free(y), free(wide), free(all);
}

/* Several arrays have the sums of each alone, and nothing is written between them. */
static void test_sumsq_of_arrays(void **state) {
  enum { ARRAYS = 3, COUNT = 20000 };
  real *in = test_new_normal(ARRAYS * COUNT, 14);
  double sum[2 * ARRAYS] = {0}, total, one = 0;
  TEST_EACH_ISA({
    ch_sumsq_args a = {.arrays = ARRAYS, .count = COUNT, .x = in, .sum = sum, .step = 2, .total = &total};
    x.ops->sumsq(&x, (total = 5, &a));
    for (int i = 0; i < ARRAYS; i++) {
      x.ops->sumsq(&x, &(ch_sumsq_args){.arrays = 1, .count = COUNT, .x = in + i * COUNT, .sum = &one});
      assert_true(!pass_ || (sum[2 * i] == one && sum[2 * i + 1] == 0 && one > 0));
    }
    assert_true(!pass_ || total == 5 + sum[0] + sum[2] + sum[4]);
  });
  free(in);
}

/* The sum of squares lets NaN and infinity through and does not overflow where float would. */
static void test_sumsq_extremes(void **state) {
  enum { COUNT = 40000 };
  real *in = test_new(COUNT);
  double sum = 0;
  TEST_EACH_ISA({
    ch_sumsq_args a = {.arrays = 1, .count = COUNT, .x = in, .sum = &sum};
    in[39999] = 1e30f;
    x.ops->sumsq(&x, &a);
    assert_true(!pass_ || fabs(sum / 1e60 - 1) < 1e-6);
    in[20000] = INFINITY;
    x.ops->sumsq(&x, &a);
    assert_true(!pass_ || isinf(sum));
    in[20000] = NAN;
    x.ops->sumsq(&x, &a);
    assert_true(!pass_ || isnan(sum));
    in[20000] = 0;
  });
  free(in);
}

/* Rounding against its definition: the nearer of the two neighbours, the even one on a tie; every exponent, both signs.
 */
static void test_round(void **state) {
  enum { LOW = 7, COUNT = 0x7f7f * LOW };
  static const uint32_t low[LOW] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234};
  float *in = malloc(COUNT * sizeof *in), odd[4] = {NAN, INFINITY, -INFINITY, 3.4028235e38f};
  ch_bf16 *y = malloc(COUNT * sizeof *y), odd_y[4];
  for (uint32_t i = 0; i < COUNT; i++) {
    uint32_t bits = (i / LOW) << 16 | low[i % LOW] | (i % 2) << 31;
    memcpy(&in[i], &bits, sizeof bits);
  }
  TEST_EACH_ISA({
    x.ops->round_bf16(&x, &(ch_round_args){.count = COUNT, .x = in, .y = y});
    for (uint32_t i = 0; pass_ && i < COUNT; i++) {
      ch_bf16 down = (ch_bf16)((i / LOW) | (i % 2) << 15), up = (ch_bf16)(down + 1);
      double to_down = fabs((double)in[i] - (double)ch_bf16_value(down)),
             to_up = fabs((double)in[i] - (double)ch_bf16_value(up));
      ch_bf16 want = to_down < to_up || (to_down == to_up && down % 2 == 0) ? down : up;
      assert_int_equal(y[i], want);
    }
    x.ops->round_bf16(&x, &(ch_round_args){.count = 4, .x = odd, .y = odd_y});
    assert_true(!pass_ || isnan(ch_bf16_value(odd_y[0])));
    assert_true(!pass_ || (odd_y[1] == 0x7f80 && odd_y[2] == 0xff80 && odd_y[3] == 0x7f80));
  });
  free(in), free(y);
}

/* Rows that the device counts, and sums that are added up: the same as a count and a sum. */
static void test_counted_on_the_device(void **state) {
  enum { ROWS = 37, WIDTH = 21, MORE = 100 };
  const int rows = ROWS;
  real *in = test_new_normal(ROWS * WIDTH, 3), *want = test_new(ROWS * WIDTH), *got = test_new(ROWS * WIDTH + MORE);
  real *wide = test_new(ROWS * WIDTH + MORE);
  ch_bf16 want16[ROWS * WIDTH], got16[ROWS * WIDTH + MORE];
  double sum[2], total = 5;
  static const char *const backends[] = {"reference", "cpu"};
  for (int b = 0; b < 2; b++) {
    memset(got16, 0xff, sizeof got16);
    total = 5;
    TEST_EXEC(backends[b], CH_COMPUTE_FP32, 2, {
      test_poison(got, ROWS * WIDTH + MORE);
      x.ops->activate(&x, &(ch_activate_args){.count = ROWS * WIDTH, .x = in, .y = want});
      x.ops->activate(&x, &(ch_activate_args){.count = WIDTH, .rows = &rows, .x = in, .y = got});
      x.ops->round_bf16(&x, &(ch_round_args){.count = ROWS * WIDTH, .x = in, .y = want16});
      x.ops->round_bf16(&x, &(ch_round_args){.count = WIDTH, .rows = &rows, .x = in, .y = got16});
      test_poison(wide, ROWS * WIDTH + MORE);
      x.ops->widen_bf16(&x, &(ch_widen_args){.count = WIDTH, .rows = &rows, .x = want16, .y = wide});
      x.ops->sumsq(&x, &(ch_sumsq_args){.arrays = 1, .count = 50, .x = in, .sum = &sum[0], .total = &total});
      x.ops->sumsq(&x, &(ch_sumsq_args){.arrays = 1, .count = 7, .x = in + 50, .sum = &sum[1], .total = &total});
    });
    assert_memory_equal(got, want, sizeof *got * ROWS * WIDTH);
    assert_true(isnan(got[ROWS * WIDTH]));
    assert_memory_equal(got16, want16, sizeof want16);
    assert_int_equal(got16[ROWS * WIDTH], 0xffff);
    for (int i = 0; i < ROWS * WIDTH; i++) assert_true(wide[i] == ch_bf16_value(want16[i]));
    assert_true(isnan(wide[ROWS * WIDTH]));
    assert_true(total == 5 + sum[0] + sum[1]);
  }
  free(in), free(want), free(got), free(wide);
}

TEST_MAIN(NULL, NULL, test_softmax, test_sigmoid, test_sigmoid_extremes, test_rmsnorm, test_embedding, test_sums,
          test_place, test_in_place, test_softmax_laws, test_softmax_with_nulls, test_sumsq_of_arrays,
          test_sumsq_extremes, test_round, test_counted_on_the_device)
