/* Reference: Adafactor. Scalars and moments of one element in double. */
#include <math.h>

#include "cpu/ref/ref.h"

/* One matrix: its arrays and sizes. */
typedef struct {
  int64_t all_cols;
  real *w, *row, *col, *measures;
  const real *g;
  double row_mean; /* 1 if unfactored */
} matrix_state;

static matrix_state matrix_at(const ch_adafactor_args *a, int64_t index) {
  int64_t size = a->rows * a->cols;
  matrix_state m = {.all_cols = a->all_cols ? a->all_cols : a->cols,
                    .w = a->w + index * size,
                    .g = a->g + index * size,
                    .col = a->col + index * a->cols,
                    .row_mean = 1};
  if (a->row) m.row = a->row + index * a->rows;
  if (a->measures) m.measures = a->measures + index * a->rows * CH_MEASURES;
  return m;
}

static double scaled_square(const ch_adafactor_args *a, real g) {
  return (double)g * a->grad_scale * (double)g * a->grad_scale;
}

/* Updates a second moment: moving average with the mean of this step's squares. */
static void decay(const ch_adafactor_args *a, real *moment, double sum, int64_t count) {
  *moment = (real)(a->beta2 * (double)*moment + (1 - a->beta2) * (sum / (double)count + a->eps1));
}

static void update_columns(const ch_adafactor_args *a, const matrix_state *m) {
  for (int64_t j = 0; j < a->cols; j++) {
    double sum = 0;
    for (int64_t i = 0; i < a->rows; i++) sum += scaled_square(a, m->g[i * a->cols + j]);
    decay(a, m->col + j, sum, a->rows);
  }
}

/* Sums over the local columns of a row, indexed by op.h's measures. */
static void measure_row(const ch_adafactor_args *a, const matrix_state *m, int64_t row, double *sum) {
  sum[CH_MEASURE_G] = sum[CH_MEASURE_W] = sum[CH_MEASURE_U] = 0;
  for (int64_t j = 0; j < a->cols; j++) {
    int64_t i = row * a->cols + j;
    sum[CH_MEASURE_G] += scaled_square(a, m->g[i]);
    sum[CH_MEASURE_W] += (double)m->w[i] * (double)m->w[i];
    sum[CH_MEASURE_U] += scaled_square(a, m->g[i]) / (double)m->col[j];
  }
}

static void measure_matrix(const ch_adafactor_args *a, const matrix_state *m) {
  for (int64_t i = 0; i < a->rows; i++) {
    double sum[CH_MEASURES];
    measure_row(a, m, i, sum);
    for (int k = 0; k < CH_MEASURES; k++) m->measures[i * CH_MEASURES + k] = (real)sum[k];
  }
}

/* Updates row moments; returns the learning rate times max(eps2, rms(w)) / max(1, rms(u) / clip). */
static double update_rows(const ch_adafactor_args *a, matrix_state *m) {
  double size = (double)(a->rows * m->all_cols), mean = 0, w_squares = 0, u_squares = 0;
  for (int64_t i = 0; i < a->rows; i++) {
    double sum[CH_MEASURES];
    if (a->stage == CH_ADAFACTOR_WHOLE) measure_row(a, m, i, sum);
    for (int k = 0; k < CH_MEASURES && a->stage != CH_ADAFACTOR_WHOLE; k++)
      sum[k] = (double)m->measures[i * CH_MEASURES + k];
    if (m->row) decay(a, m->row + i, sum[CH_MEASURE_G], m->all_cols);
    mean += (m->row ? (double)m->row[i] : 1) / (double)a->rows;
    w_squares += sum[CH_MEASURE_W];
    u_squares += sum[CH_MEASURE_U] / (m->row ? (double)m->row[i] : 1);
  }
  m->row_mean = mean;
  return a->learning_rate * fmax(a->eps2, sqrt(w_squares / size)) / fmax(1, sqrt(mean * u_squares / size) / a->clip);
}

/* Update direction g / sqrt(v) of one element. */
static double direction(const ch_adafactor_args *a, const matrix_state *m, int64_t i) {
  double factor = m->row ? (double)m->row[i / a->cols] / m->row_mean : 1;
  return (double)m->g[i] * a->grad_scale / sqrt(factor * (double)m->col[i % a->cols]);
}

static void adafactor_matrix(const ch_adafactor_args *a, int64_t index) {
  int64_t size = a->rows * a->cols;
  matrix_state m = matrix_at(a, index);
  if (a->stage != CH_ADAFACTOR_APPLY) update_columns(a, &m);
  if (a->stage == CH_ADAFACTOR_MEASURE) {
    measure_matrix(a, &m);
    return;
  }
  double learning_rate = update_rows(a, &m);
  for (int64_t i = 0; i < size; i++) {
    m.w[i] = (real)((double)m.w[i] - learning_rate * direction(a, &m, i));
    if (a->w16) a->w16[index * size + i] = ch_bf16_round((float)m.w[i]);
  }
}

CH_REF_OP(adafactor) {
  if (a->finite && !isfinite(*a->finite)) return;
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < a->batch; i++) adafactor_matrix(a, i);
}
