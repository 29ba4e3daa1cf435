/* Rotary position embedding: the formula, its laws, and every backend. */
#include "variants.h"

typedef struct {
  int64_t n;
  int heads, dh, rotated, T, back, given; /* given: positions in an array, and not in order */
} shape;

static const shape shapes[] = {{1, 1, 2, 2, 1, 0, 0},     {7, 3, 10, 10, 4, 0, 0},    {20, 2, 16, 6, 20, 1, 0},
                               {33, 4, 64, 64, 11, 0, 1}, {200, 3, 20, 12, 64, 1, 1}, {600, 2, 48, 48, 300, 0, 0}};
enum { POSITIONS = 300 };
static const double theta = 5000;

static int64_t size_of(const shape *s) { return s->n * s->heads * s->dh; }
static int32_t position_of(const shape *s, int64_t t) { return (int32_t)(s->given ? t * 37 % POSITIONS : t % s->T); }

/* The table, and x turned by it. */
static void run(ch_exec *x, const void *context, real *out) {
  const shape *s = context;
  int32_t *position = malloc((size_t)s->n * sizeof *position);
  real *table = out + size_of(s), *in = test_new_normal(size_of(s), 1);
  for (int64_t t = 0; t < s->n; t++) position[t] = position_of(s, t);
  memcpy(out, in, (size_t)size_of(s) * sizeof *out);
  ch_rope_table_args make = {.positions = POSITIONS, .rotated = s->rotated, .theta = theta, .rope_table = table};
  x->ops->rope_table(x, &make);
  ch_rope_args a = {.n = s->n,
                    .heads = s->heads,
                    .dh = s->dh,
                    .rotated = s->rotated,
                    .back = s->back,
                    .T = s->T,
                    .position = s->given ? position : NULL,
                    .rope_table = table,
                    .x = out};
  x->ops->rope(x, &a);
  x->memory->synchronise();
  free(position), free(in);
}

/* Complex numbers: the pair as one, times exp(i angle). */
static void is_the_formula(void **state) {
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const shape *s = &shapes[i];
    int64_t size = size_of(s);
    real *in = test_new_normal(size, 1), *want = test_new(size),
         *got = test_run_on("reference", "generic", 2, run, s, size + POSITIONS * s->rotated);
    memcpy(want, in, (size_t)size * sizeof *want);
    for (int64_t row = 0; row < s->n * s->heads; row++)
      for (int c = 0; c < s->rotated / 2; c++) {
        real *pair[2] = {want + row * s->dh + c, want + row * s->dh + c + s->rotated / 2};
        double size_ = hypot((double)*pair[0], (double)*pair[1]), angle = atan2((double)*pair[1], (double)*pair[0]);
        double rotation = position_of(s, row / s->heads) / pow(theta, 2.0 * c / s->rotated);
        angle += s->back ? -rotation : rotation;
        *pair[0] = (real)(size_ * cos(angle));
        *pair[1] = (real)(size_ * sin(angle));
      }
    test_close(got, want, size, 1e-6);
    test_variants("rope", run, s, TEST_PARTS(size, POSITIONS * s->rotated), 1e-6);
    free(in), free(want), free(got);
  }
}

/* One row [dh] at a position. */
static void rotate(ch_exec *x, const real *table, int dh, int position, int back, real *row) {
  int32_t at = position;
  x->ops->rope(
      x,
      &(ch_rope_args){
          .n = 1, .heads = 1, .dh = dh, .rotated = dh, .back = back, .position = &at, .rope_table = table, .x = row});
}

/* Products of a turned query and a turned key know their distance alone; to turn back undoes it. */
static void distances_alone(void **state) {
  enum { DH = 32 };
  real *q = test_new_normal(DH, 2), *k = test_new_normal(DH, 3), *table = test_new(POSITIONS * DH), a[DH], b[DH];
  TEST_EXEC("cpu", CH_COMPUTE_FP32, 1, {
    ch_rope_table_args make = {.positions = POSITIONS, .rotated = DH, .theta = 1e4, .rope_table = table};
    x.ops->rope_table(&x, &make);
    for (int distance = 0; distance < 200 && pass_; distance += 13) {
      double first = 0;
      for (int j = 0; j + distance < POSITIONS; j += 29) {
        memcpy(a, q, sizeof a), memcpy(b, k, sizeof b);
        rotate(&x, table, DH, j + distance, 0, a), rotate(&x, table, DH, j, 0, b);
        double product = test_dot(a, b, DH);
        if (j == 0) first = product;
        assert_true(fabs(product - first) <= 2e-5);
        rotate(&x, table, DH, j, 1, b);
        test_close(b, k, DH, 1e-6);
      }
      double plain = test_dot(q, k, DH);
      assert_true(distance == 0 ? fabs(first - plain) <= 2e-5 : fabs(first - plain) > 1e-3);
    }
  });
  free(q), free(k), free(table);
}

TEST_MAIN(NULL, NULL, is_the_formula, distances_alone)
