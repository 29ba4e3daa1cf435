/* Vectorized Adafactor in three passes, the minimum: means of squares (and rms of w), rms of the update, update.
 *
 * A sharded matrix takes two calls: the first two passes measure; after ranks have added their sums over rows, the
 * third pass updates with these sums.
 *
 * The tensor is processed in groups of matrices that stay in a cache between the passes (one matrix if it is large). A
 * task is a block of rows of one matrix of the group. Sums over blocks are added in ascending order. */
#include <math.h>
#include <string.h>

#include "cpu/simd/fill.h"

enum { BLOCK = 1 << 14, MIN_ROWS = 16, MAX_BLOCKS = 256 }; /* min elements and rows per block; max blocks per matrix */
enum { GROUP = 1 << 19 };                                  /* max elements per group, unless a matrix has more */

typedef struct {
  const ch_adafactor_args *args;
  int64_t all_cols;                  /* columns of the whole matrix, over all ranks */
  int64_t block_rows, blocks, group; /* rows per block, blocks per matrix, matrices per group */
  float *col_sums;                   /* [group,blocks,cols] of g^2 */
  float *row_factor, *col_factor;    /* [group,rows], [group,cols]: u = g row_factor col_factor */
  double *w_squares, *u_squares;     /* [group,blocks] */
} adafactor_plan;

static adafactor_plan make_plan(ch_arena *scratch, const ch_adafactor_args *a) {
  adafactor_plan p = {.args = a,
                      .all_cols = a->all_cols ? a->all_cols : a->cols,
                      .block_rows = BLOCK / a->cols > MIN_ROWS ? BLOCK / a->cols : MIN_ROWS};
  if (p.block_rows * MAX_BLOCKS < a->rows) p.block_rows = ch_pieces(a->rows, MAX_BLOCKS);
  p.blocks = ch_pieces(a->rows, p.block_rows);
  p.group = GROUP / (a->rows * a->cols) > 1 ? GROUP / (a->rows * a->cols) : 1;
  if (p.group > a->batch) p.group = a->batch;
  p.col_sums = CH_NEW(scratch, float, (p.group * p.blocks * a->cols));
  p.row_factor = CH_NEW(scratch, float, p.group * a->rows);
  p.col_factor = CH_NEW(scratch, float, p.group * a->cols);
  p.w_squares = CH_NEW(scratch, double, (p.group * p.blocks));
  p.u_squares = CH_NEW(scratch, double, (p.group * p.blocks));
  return p;
}

/* Block b of matrix m of a group; the matrix has number `index` in the tensor. */
typedef struct {
  int64_t index, m, b, begin, end; /* rows begin .. end-1 */
} row_block;

static row_block block_at(const adafactor_plan *p, int64_t first, int64_t number) {
  row_block k = {.m = number / p->blocks, .b = number % p->blocks};
  k.index = first + k.m;
  k.begin = k.b * p->block_rows;
  k.end = ch_piece_end(k.b, p->args->rows, p->block_rows);
  return k;
}

/* The measures of one row of the tensor; NULL if the update takes one call. */
static float *measures_of(const ch_adafactor_args *a, int64_t row) {
  return a->stage == CH_ADAFACTOR_WHOLE ? NULL : a->measures + row * CH_MEASURES;
}

/* Moving average of squares, updated by this step's `sum` over `count` squares. */
static float decayed(const ch_adafactor_args *a, float mean, double sum, int64_t count) {
  return (float)(a->beta2 * (double)mean + (1 - a->beta2) * (sum / (double)count + a->eps1));
}

/* Sums over a row, as in op.h's measures. */
typedef struct {
  float g, w;
} row_squares;

/* Sums the squares of one row over its local columns, and adds each square to its column's sum in col. */
static inline row_squares measure_row(const ch_adafactor_args *a, int64_t row, float *col) {
  const float *g = a->g + row * a->cols, *w = a->w + row * a->cols;
  float scale = (float)a->grad_scale, sum = 0, w_sum = 0;
#pragma omp simd reduction(+ : sum, w_sum)
  for (int64_t j = 0; j < a->cols; j++) {
    float scaled = g[j] * scale, square = scaled * scaled;
    col[j] += square;
    sum += square;
    w_sum += w[j] * w[j];
  }
  return (row_squares){sum, w_sum};
}

/* Pass 1: row moments, this block's column sums, and its sum of w^2. */
static void statistics(const adafactor_plan *p, row_block k) {
  const ch_adafactor_args *a = p->args;
  int64_t number = k.m * p->blocks + k.b;
  float *col = p->col_sums + number * a->cols;
  double w_total = 0;
  if (a->stage != CH_ADAFACTOR_APPLY) memset(col, 0, (size_t)a->cols * sizeof *col);
  for (int64_t i = k.begin; i < k.end; i++) {
    int64_t row = k.index * a->rows + i;
    float *measures = measures_of(a, row);
    row_squares sum = a->stage == CH_ADAFACTOR_APPLY ? (row_squares){measures[CH_MEASURE_G], measures[CH_MEASURE_W]}
                                                     : measure_row(a, row, col);
    w_total += (double)sum.w;
    if (a->stage == CH_ADAFACTOR_MEASURE) {
      measures[CH_MEASURE_G] = sum.g;
      measures[CH_MEASURE_W] = sum.w;
    } else if (a->row) {
      a->row[row] = decayed(a, a->row[row], (double)sum.g, p->all_cols);
    }
  }
  p->w_squares[number] = w_total;
}

static void column_moments(const adafactor_plan *p, int64_t index, int64_t m) {
  const ch_adafactor_args *a = p->args;
  const float *sums = p->col_sums + m * p->blocks * a->cols;
  float *col = a->col + index * a->cols;
  for (int64_t j = 0; j < a->cols; j++) {
    double sum = 0;
    for (int64_t b = 0; b < p->blocks; b++) sum += (double)sums[b * a->cols + j];
    col[j] = decayed(a, col[j], sum, a->rows);
  }
}

/* Between the passes, for one matrix: column moments, and the factors of 1/sqrt(v) = row_factor col_factor. */
static void factors(const adafactor_plan *p, int64_t index, int64_t m) {
  const ch_adafactor_args *a = p->args;
  const float *col = a->col + index * a->cols;
  if (a->stage != CH_ADAFACTOR_APPLY) column_moments(p, index, m);
  for (int64_t j = 0; j < a->cols; j++) p->col_factor[m * a->cols + j] = 1 / sqrtf(col[j]);
  const float *row = a->row && a->stage != CH_ADAFACTOR_MEASURE ? a->row + index * a->rows : NULL;
  double mean = 0;
  for (int64_t i = 0; row && i < a->rows; i++) mean += (double)row[i] / (double)a->rows;
  for (int64_t i = 0; i < a->rows; i++) p->row_factor[m * a->rows + i] = row ? (float)sqrt(mean / (double)row[i]) : 1;
}

/* Sum of u^2 over a row's local columns, without row_factor. */
static inline float measure_update(const ch_adafactor_args *a, int64_t row, const float *factor) {
  const float *g = a->g + row * a->cols;
  float scale = (float)a->grad_scale, sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < a->cols; j++) {
    float u = g[j] * scale * factor[j];
    sum += u * u;
  }
  return sum;
}

/* Pass 2: sum of u^2. */
static void update_squares(const adafactor_plan *p, row_block k) {
  const ch_adafactor_args *a = p->args;
  const float *factor = p->col_factor + k.m * a->cols;
  double total = 0;
  for (int64_t i = k.begin; i < k.end; i++) {
    float *measures = measures_of(a, k.index * a->rows + i), row = p->row_factor[k.m * a->rows + i];
    float sum =
        a->stage == CH_ADAFACTOR_APPLY ? measures[CH_MEASURE_U] : measure_update(a, k.index * a->rows + i, factor);
    if (a->stage == CH_ADAFACTOR_MEASURE) measures[CH_MEASURE_U] = sum;
    total += (double)sum * (double)row * (double)row;
  }
  p->u_squares[k.m * p->blocks + k.b] = total;
}

/* Step size of one matrix: learning rate times max(eps2, rms(w)) / max(1, rms(u) / clip). */
static double step_of(const adafactor_plan *p, int64_t m) {
  const ch_adafactor_args *a = p->args;
  double size = (double)(a->rows * p->all_cols), w = 0, u = 0;
  for (int64_t b = 0; b < p->blocks; b++) {
    w += p->w_squares[m * p->blocks + b];
    u += p->u_squares[m * p->blocks + b];
  }
  return a->learning_rate * fmax(a->eps2, sqrt(w / size)) / fmax(1, sqrt(u / size) / a->clip);
}

/* Pass 3. */
static void update(const adafactor_plan *p, row_block k) {
  const ch_adafactor_args *a = p->args;
  const float *factor = p->col_factor + k.m * a->cols;
  double step = step_of(p, k.m) * a->grad_scale;
  for (int64_t i = k.begin; i < k.end; i++) {
    int64_t at = (k.index * a->rows + i) * a->cols;
    const float *g = a->g + at;
    float *w = a->w + at, row = (float)(step * (double)p->row_factor[k.m * a->rows + i]);
#pragma omp simd
    for (int64_t j = 0; j < a->cols; j++) w[j] -= g[j] * factor[j] * row;
    if (!a->w16) continue;
    ch_bf16 *w16 = a->w16 + at;
#pragma omp simd
    for (int64_t j = 0; j < a->cols; j++) w16[j] = ch_bf16_round(w[j]);
  }
}

CH_SIMD_SCRATCH_OP(adafactor) {
  CH_SCRATCH(x);
  adafactor_plan p = make_plan(&x->scratch, a);
  if (ch_counting(x) || (a->finite && !isfinite(*a->finite))) return;
#pragma omp parallel num_threads(x->threads) if (a->batch * a->rows * a->cols > CH_PIECE)
  for (int64_t first = 0; first < a->batch; first += p.group) {
    int64_t matrices = a->batch - first < p.group ? a->batch - first : p.group, count = matrices * p.blocks;
#pragma omp for
    for (int64_t k = 0; k < count; k++) statistics(&p, block_at(&p, first, k));
#pragma omp for
    for (int64_t m = 0; m < matrices; m++) factors(&p, first + m, m);
#pragma omp for
    for (int64_t k = 0; k < count; k++) update_squares(&p, block_at(&p, first, k));
    if (a->stage == CH_ADAFACTOR_MEASURE) continue;
#pragma omp for
    for (int64_t k = 0; k < count; k++) update(&p, block_at(&p, first, k));
  }
}
