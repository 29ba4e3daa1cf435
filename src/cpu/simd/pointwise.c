/* Vectorized softmax, sigmoid, sum of squares and rounding to bf16. */
#include "cpu/simd/fill.h"
#include "cpu/simd/vexp.h"

static void softmax_row(int m, int nulls, const float *in, float *out) {
  float largest = nulls ? 0 : -INFINITY, sum = 0;
#pragma omp simd reduction(max : largest)
  for (int j = 0; j < m; j++) largest = in[j] > largest ? in[j] : largest;
#pragma omp simd reduction(+ : sum)
  for (int j = 0; j < m; j++) sum += out[j] = ch_exp_to_88(in[j] - largest);
  if (nulls) sum += (float)nulls * ch_exp_to_88(-largest);
  float scale = 1 / sum;
#pragma omp simd
  for (int j = 0; j < m; j++) out[j] *= scale;
}

CH_SIMD_OP(softmax) {
#pragma omp parallel for num_threads(x->threads) if (a->n * a->m > CH_PIECE)
  for (int64_t t = 0; t < a->n; t++) softmax_row(a->m, a->nulls, a->x + t * a->m, a->y + t * a->m);
}

static void softmax_backward_row(int m, const float *y, const float *dy, float *dx) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int j = 0; j < m; j++) dot += y[j] * dy[j];
#pragma omp simd
  for (int j = 0; j < m; j++) dx[j] = y[j] * (dy[j] - dot);
}

CH_SIMD_OP(softmax_backward) {
#pragma omp parallel for num_threads(x->threads) if (a->n * a->m > CH_PIECE)
  for (int64_t t = 0; t < a->n; t++) softmax_backward_row(a->m, a->y + t * a->m, a->dy + t * a->m, a->dx + t * a->m);
}

CH_SIMD_OP(sigmoid) {
  int64_t pieces = ch_pieces(a->count, CH_PIECE);
#pragma omp parallel for num_threads(x->threads) if (pieces > 1)
  for (int64_t p = 0; p < pieces; p++) {
    const float *in = a->x;
    float *y = a->y;
    int64_t end = ch_piece_end(p, a->count, CH_PIECE);
#pragma omp simd
    for (int64_t i = p * CH_PIECE; i < end; i++) y[i] = ch_sigmoid(in[i]);
  }
}

static double sum_of_squares(const float *x, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; i++) sum += (double)x[i] * (double)x[i];
  return sum;
}

/* One sum in double per block, added in ascending order. */
CH_SIMD_SCRATCH_OP(sumsq) {
  int64_t pieces = ch_pieces(a->count, CH_PIECE), all = a->arrays * pieces;
  CH_SCRATCH(x);
  double *sums = CH_NEW(&x->scratch, double, all);
  if (ch_counting(x)) return;
#pragma omp parallel for num_threads(x->threads) if (all > 1)
  for (int64_t i = 0; i < all; i++) {
    int64_t begin = i % pieces * CH_PIECE, end = ch_piece_end(i % pieces, a->count, CH_PIECE);
    sums[i] = sum_of_squares(a->x + i / pieces * a->count + begin, end - begin);
  }
  for (int64_t array = 0; array < a->arrays; array++) {
    double sum = 0;
    for (int64_t p = 0; p < pieces; p++) sum += sums[array * pieces + p];
    a->sum[array * a->step] = sum;
    if (a->total) *a->total += sum;
  }
}

void CH_SIMD(ch_round_matrix)(int64_t rows, int64_t columns, const float *x, int64_t ldx, ch_bf16 *y) {
  for (int64_t r = 0; r < rows; r++, x += ldx, y += columns)
#pragma omp simd
    for (int64_t i = 0; i < columns; i++) y[i] = ch_bf16_round(x[i]);
}

CH_SIMD_OP(round_bf16) {
  int64_t all = ch_elements(a->count, a->rows), pieces = ch_pieces(all, CH_PIECE);
#pragma omp parallel for num_threads(x->threads) if (pieces > 1)
  for (int64_t p = 0; p < pieces; p++) {
    int64_t begin = p * CH_PIECE, end = ch_piece_end(p, all, CH_PIECE);
    CH_SIMD(ch_round_matrix)(1, end - begin, a->x + begin, 0, a->y + begin);
  }
}

CH_SIMD_OP(widen_bf16) {
  int64_t all = ch_elements(a->count, a->rows), pieces = ch_pieces(all, CH_PIECE);
#pragma omp parallel for num_threads(x->threads) if (pieces > 1)
  for (int64_t p = 0; p < pieces; p++) {
    const ch_bf16 *in = a->x;
    float *y = a->y;
    int64_t begin = p * CH_PIECE, end = ch_piece_end(p, all, CH_PIECE);
    if (a->accumulate) {
#pragma omp simd
      for (int64_t i = begin; i < end; i++) y[i] += ch_bf16_value(in[i]);
    } else {
#pragma omp simd
      for (int64_t i = begin; i < end; i++) y[i] = ch_bf16_value(in[i]);
    }
  }
}
