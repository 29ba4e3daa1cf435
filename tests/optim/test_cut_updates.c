/* Adafactor on matrices whose columns lie on several ranks: MEASURE on every part, sums over parts, APPLY. All of it
 * here in one process: parts take turns. */
#include "cut_testing.h"
#include "variants.h"

enum { STEPS = 3, MAX_PARTS = 3 };
static const double size_of_step[STEPS + 1] = {0, 1, 0.1, 30}; /* clipping works in the last one, not in the second */

typedef struct {
  int64_t batch, rows, cols;
  int parts; /* 0: the whole update */
  int64_t begin[MAX_PARTS + 1];
  double gradient_size;
} shape;

/* A rank has this part of a tensor. */
typedef struct {
  int64_t first, cols;
  real *w, *g, *row, *col, *measures;
  ch_bf16 *w16;
} part;

static part make_part(const shape *s, int number, const real *w) {
  int64_t first = s->parts ? s->begin[number] : 0, cols = s->parts ? s->begin[number + 1] - first : s->cols;
  int64_t lines = s->batch * s->rows, count = lines * cols;
  part p = {.first = first, .cols = cols, .w = test_new(count), .g = test_new(count), .row = test_new(lines)};
  p.col = test_new(s->batch * cols);
  p.measures = test_new(lines * CH_MEASURES);
  p.w16 = calloc((size_t)count, sizeof *p.w16);
  cut_take(w, lines, s->cols, first, cols, p.w);
  return p;
}

static void free_part(part *p) { free(p->w), free(p->g), free(p->row), free(p->col), free(p->measures), free(p->w16); }

static ch_adafactor_args args_of(const shape *s, const part *p, int step) {
  return (ch_adafactor_args){.batch = s->batch,
                             .rows = s->rows,
                             .cols = p->cols,
                             .all_cols = s->cols,
                             .w = p->w,
                             .g = p->g,
                             .row = p->row,
                             .col = p->col,
                             .measures = s->parts ? p->measures : NULL,
                             .learning_rate = 0.05,
                             .beta2 = step > 1 ? 0.9 : 0,
                             .eps1 = 1e-30,
                             .eps2 = 1e-3,
                             .clip = 0.9,
                             .grad_scale = 0.5,
                             .w16 = p->w16};
}

static void run_stage(ch_exec *x, const shape *s, part *p, int parts, int step, ch_adafactor_stage stage) {
  for (int i = 0; i < parts; i++) {
    ch_adafactor_args a = args_of(s, &p[i], step);
    a.stage = stage;
    x->ops->adafactor(x, &a);
  }
}

/* Every part gets the sums of all. */
static void add_up(const shape *s, part *p) {
  for (int64_t k = 0; k < s->batch * s->rows * CH_MEASURES; k++) {
    real sum = 0;
    for (int i = 0; i < s->parts; i++) sum += p[i].measures[k];
    for (int i = 0; i < s->parts; i++) p[i].measures[k] = sum;
  }
}

/* Out: w, col, row after some steps. */
static void run(ch_exec *x, const void *context, real *out) {
  const shape *s = context;
  int64_t lines = s->batch * s->rows, count = lines * s->cols;
  int parts = s->parts ? s->parts : 1;
  real *g = test_new(count), *col = out + count, *row = col + s->batch * s->cols;
  part p[MAX_PARTS];
  cut_normal(out, lines, s->cols, 0.01, 1);
  for (int i = 0; i < parts; i++) p[i] = make_part(s, i, out);
  for (int step = 1; step <= STEPS; step++) {
    cut_normal(g, lines, s->cols, s->gradient_size * size_of_step[step], (uint32_t)(100 + step));
    for (int i = 0; i < parts; i++) {
      cut_take(g, lines, s->cols, p[i].first, p[i].cols, p[i].g);
      test_poison(p[i].measures, lines * CH_MEASURES);
    }
    run_stage(x, s, p, parts, step, s->parts ? CH_ADAFACTOR_MEASURE : CH_ADAFACTOR_WHOLE);
    if (!s->parts) continue;
    add_up(s, p);
    run_stage(x, s, p, parts, step, CH_ADAFACTOR_APPLY);
  }
  for (int i = 0; i < parts; i++) {
    cut_put(p[i].w, lines, s->cols, p[i].first, p[i].cols, out);
    cut_put(p[i].col, s->batch, s->cols, p[i].first, p[i].cols, col);
    assert_memory_equal(p[i].row, p[0].row, (size_t)lines * sizeof *row); /* to the bit, or ranks drift apart */
    for (int64_t k = 0; k < lines * p[i].cols && !ch_counting(x); k++)
      assert_int_equal(p[i].w16[k], ch_bf16_round(p[i].w[k]));
  }
  memcpy(row, p[0].row, (size_t)lines * sizeof *row);
  for (int i = 0; i < parts; i++) free_part(&p[i]);
  free(g);
}

/* The parts together get what the whole gets: to rounding, and where there is one part, on the CPU, to the bit. */
static void check_law(const shape *cut) {
  shape whole = *cut;
  whole.parts = 0;
  int64_t part[] = {cut->batch * cut->rows * cut->cols, cut->batch * cut->cols, cut->batch * cut->rows};
  int64_t count = part[0] + part[1] + part[2];
  test_variants("cut", run, cut, TEST_PARTS(part[0], part[1], part[2]), 1e-5);
  for (int i = -1; i < TEST_ISAS; i++) {
    const char *backend = i < 0 ? "reference" : "cpu", *isa = i < 0 ? "generic" : test_isas[i];
    real *got = test_run_on(backend, isa, 2, run, cut, count), *want = test_run_on(backend, isa, 2, run, &whole, count);
    for (int k = 0, at = 0; k < 3; at += (int)part[k++]) test_close(got + at, want + at, part[k], 1e-6);
    if (i >= 0 && cut->parts == 1) assert_memory_equal(got, want, (size_t)count * sizeof *got);
    free(got), free(want);
  }
}

static void test_law(void **state) {
  static const shape shapes[] = {
      {1, 5, 6, 1, {0, 6}, 1},           {3, 13, 17, 1, {0, 17}, 10},        {1, 5, 6, 2, {0, 3, 6}, 1},
      {3, 13, 17, 3, {0, 1, 9, 17}, 10}, {2, 300, 400, 2, {0, 130, 400}, 1}, {9, 130, 600, 3, {0, 200, 400, 600}, 1e-6},
      {1, 1, 40, 2, {0, 16, 40}, 1}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_law(&shapes[i]);
}

/* Every stage updates if *finite is a finite number, and none does if it is not. */
static void test_finite(void **state) {
  static const char *const backends[] = {"reference", "cpu"};
  static const shape s = {1, 6, 10, 2, {0, 4, 10}, 1};
  real w[60];
  cut_normal(w, 6, 10, 1, 1);
  for (int b = 0; b < 2; b++)
    for (int round = 0; round < 3; round++) {
      double finite = round == 0 ? (double)NAN : round == 1 ? (double)INFINITY : 3;
      part p = make_part(&s, 1, w), same = make_part(&s, 1, w);
      test_normal(p.g, 6 * p.cols, 2);
      ch_adafactor_args a = args_of(&s, &p, 1);
      a.finite = &finite;
      TEST_EXEC(backends[b], CH_COMPUTE_FP32, 2, {
        a.stage = CH_ADAFACTOR_MEASURE;
        x.ops->adafactor(&x, &a);
        int changed = p.col[0] != 0 || p.measures[CH_MEASURE_G] != 0;
        assert_int_equal(changed, pass_ && round == 2);
        for (int i = 0; pass_ && i < 6 * CH_MEASURES; i++) p.measures[i] += 1;
        a.stage = CH_ADAFACTOR_APPLY;
        x.ops->adafactor(&x, &a);
        changed = p.row[0] != 0 || memcmp(p.w, same.w, (size_t)(6 * p.cols) * sizeof *p.w) != 0;
        assert_int_equal(changed, pass_ && round == 2);
      });
      free_part(&p), free_part(&same);
    }
}

TEST_MAIN(NULL, NULL, test_law, test_finite)
