/* Reference: softmax, copy, sum of squares, rounding to bf16. */
#include <math.h>
#include <string.h>

#include "cpu/ref/ref.h"

static void softmax(ch_exec *x, const ch_softmax_args *a) {
  if (ch_counting(x)) return;
#pragma omp parallel for num_threads(x->threads)
  for (int64_t t = 0; t < a->n; t++) {
    const real *in = a->x + t * a->m;
    real *out = a->y + t * a->m;
    real largest = -(real)INFINITY;
    for (int j = 0; j < a->m; j++)
      if (in[j] > largest) largest = in[j];
    double sum = 0;
    for (int j = 0; j < a->m; j++) sum += (double)(out[j] = (real)exp((double)(in[j] - largest)));
    for (int j = 0; j < a->m; j++) out[j] = (real)((double)out[j] / sum);
  }
}

static void softmax_backward(ch_exec *x, const ch_softmax_args *a) {
  if (ch_counting(x)) return;
#pragma omp parallel for num_threads(x->threads)
  for (int64_t t = 0; t < a->n; t++) {
    const real *y = a->y + t * a->m, *dy = a->dy + t * a->m;
    real *dx = a->dx + t * a->m;
    double dot = 0;
    for (int j = 0; j < a->m; j++) dot += (double)y[j] * (double)dy[j];
    for (int j = 0; j < a->m; j++) dx[j] = (real)((double)y[j] * ((double)dy[j] - dot));
  }
}

static void copy(ch_exec *x, const ch_copy_args *a) {
  if (ch_counting(x)) return;
  enum { PIECE = 1 << 18 };
#pragma omp parallel for num_threads(x->threads)
  for (int64_t begin = 0; begin < a->count; begin += PIECE) {
    size_t bytes = (size_t)(a->count - begin < PIECE ? a->count - begin : PIECE) * sizeof(real);
    if (a->x)
      memcpy(a->y + begin, a->x + begin, bytes);
    else
      memset(a->y + begin, 0, bytes);
  }
}

static void sumsq(ch_exec *x, const ch_sumsq_args *a) {
  if (ch_counting(x)) return;
  double sum = 0;
  for (int64_t i = 0; i < a->count; i++) sum += (double)a->x[i] * (double)a->x[i];
  *a->sum = sum;
}

static void round_bf16(ch_exec *x, const ch_round_args *a) {
  if (ch_counting(x)) return;
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < a->count; i++) a->y[i] = ch_bf16_round((float)a->x[i]);
}

void ch_ref_fill_pointwise(ch_ops *ops) {
  ops->softmax = softmax;
  ops->softmax_backward = softmax_backward;
  ops->copy = copy;
  ops->sumsq = sumsq;
  ops->round_bf16 = round_bf16;
}
