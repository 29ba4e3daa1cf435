/* Reference: Adafactor. Scalars and moments of one element in double. */
#include <math.h>

#include "cpu/ref/ref.h"

/* mean of (scale g)^2 + eps1 over `count` elements, `stride` apart. */
static double mean_square(const ch_adafactor_args *a, const real *g, int64_t count, int64_t stride) {
  double sum = 0;
  for (int64_t i = 0; i < count; i++) {
    double scaled = (double)g[i * stride] * a->grad_scale;
    sum += scaled * scaled + a->eps1;
  }
  return sum / (double)count;
}

static double rms(const real *x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; i++) sum += (double)x[i] * (double)x[i];
  return sqrt(sum / (double)count);
}

/* Where one matrix stands. */
typedef struct {
  real *w, *row, *col;
  const real *g;
  double row_mean; /* 1 where unfactored */
} matrix_state;

/* Decays the second moments towards this step's means. */
static void update_moments(const ch_adafactor_args *a, matrix_state *m) {
  double keep = a->beta2, take = 1 - a->beta2;
  for (int64_t j = 0; j < a->cols; j++)
    m->col[j] = (real)(keep * (double)m->col[j] + take * mean_square(a, m->g + j, a->rows, a->cols));
  m->row_mean = m->row ? 0 : 1;
  for (int64_t i = 0; m->row && i < a->rows; i++) {
    m->row[i] = (real)(keep * (double)m->row[i] + take * mean_square(a, m->g + i * a->cols, a->cols, 1));
    m->row_mean += (double)m->row[i] / (double)a->rows;
  }
}

/* g / sqrt(v) of one element. */
static double direction(const ch_adafactor_args *a, const matrix_state *m, int64_t i) {
  double factor = m->row ? (double)m->row[i / a->cols] / m->row_mean : 1;
  return (double)m->g[i] * a->grad_scale / sqrt(factor * (double)m->col[i % a->cols]);
}

static void adafactor_matrix(const ch_adafactor_args *a, int64_t index) {
  int64_t size = a->rows * a->cols;
  matrix_state m = {.w = a->w + index * size, .g = a->g + index * size, .col = a->col + index * a->cols};
  if (a->row) m.row = a->row + index * a->rows;
  update_moments(a, &m);
  double squares = 0;
  for (int64_t i = 0; i < size; i++) squares += direction(a, &m, i) * direction(a, &m, i);
  double clip = fmax(1, sqrt(squares / (double)size) / a->clip);
  double rate = a->rate * fmax(a->eps2, rms(m.w, size)) / clip;
  for (int64_t i = 0; i < size; i++) {
    m.w[i] = (real)((double)m.w[i] - rate * direction(a, &m, i));
    if (a->w16) a->w16[index * size + i] = ch_bf16_round((float)m.w[i]);
  }
}

static void adafactor(ch_exec *x, const ch_adafactor_args *a) {
  if (ch_counting(x) || (a->finite && !isfinite(*a->finite))) return;
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < a->batch; i++) adafactor_matrix(a, i);
}

void ch_ref_fill_adafactor(ch_ops *ops) { ops->adafactor = adafactor; }
