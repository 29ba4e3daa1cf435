/* Vectorized RMSNorm: forward and backward read every row from memory once. */
#include <math.h>
#include <string.h>

#include "cpu/simd/fill.h"

enum { ROWS = 64 }; /* rows per partial sum of dw */

static void norm_row(const ch_rmsnorm_args *a, int64_t t) {
  const float *in = a->x + t * a->d, *w = a->w;
  float *out = a->y + t * a->d, squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int j = 0; j < a->d; j++) squares += in[j] * in[j];
  float rstd = 1 / sqrtf(squares / (float)a->d + a->eps);
#pragma omp simd
  for (int j = 0; j < a->d; j++) out[j] = in[j] * rstd * w[j];
  a->rstd[t] = rstd;
}

CH_SIMD_OP(rmsnorm) {
#pragma omp parallel for num_threads(x->threads) if (a->n * a->d > CH_PIECE)
  for (int64_t t = 0; t < a->n; t++) norm_row(a, t);
}

/* dx = rstd w dy - x rstd^3 <x, w dy> / d; dw += dy x rstd. */
static void norm_backward_row(const ch_rmsnorm_args *a, int64_t t, float *dw) {
  const float *in = a->x + t * a->d, *dy = a->dy + t * a->d, *w = a->w;
  float *dx = a->dx + t * a->d, rstd = a->rstd[t], dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int j = 0; j < a->d; j++) dot += in[j] * w[j] * dy[j];
  float slope = rstd * rstd * rstd * dot / (float)a->d;
  if (a->dx_acc) {
#pragma omp simd
    for (int j = 0; j < a->d; j++) dx[j] += rstd * w[j] * dy[j] - in[j] * slope;
  } else {
#pragma omp simd
    for (int j = 0; j < a->d; j++) dx[j] = rstd * w[j] * dy[j] - in[j] * slope;
  }
#pragma omp simd
  for (int j = 0; j < a->d; j++) dw[j] += dy[j] * in[j] * rstd;
}

CH_SIMD_SCRATCH_OP(rmsnorm_backward) {
  int64_t blocks = ch_pieces(a->n, ROWS);
  CH_SCRATCH(x);
  float *partial = CH_NEW(&x->scratch, float, blocks * a->d); /* [blocks,d] */
  if (ch_counting(x)) return;
#pragma omp parallel num_threads(x->threads) if (a->n * a->d > CH_PIECE)
  {
#pragma omp for
    for (int64_t b = 0; b < blocks; b++) {
      float *dw = partial + b * a->d;
      memset(dw, 0, (size_t)a->d * sizeof *dw);
      for (int64_t t = b * ROWS; t < ch_piece_end(b, a->n, ROWS); t++) norm_backward_row(a, t, dw);
    }
#pragma omp for
    for (int j = 0; j < a->d; j++) {
      double sum = 0;
      for (int64_t b = 0; b < blocks; b++) sum += (double)partial[b * a->d + j];
      a->dw[j] += (float)sum;
    }
  }
}
