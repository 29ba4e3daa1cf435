/* Reference: softmax, sigmoid, copy, product by elements, jitter, sum of squares, rounding to bf16. */
#include <math.h>
#include <string.h>

#include "cpu/ref/ref.h"

CH_REF_OP(softmax) {
#pragma omp parallel for num_threads(x->threads)
  for (int64_t t = 0; t < a->n; t++) {
    const real *in = a->x + t * a->m;
    real *out = a->y + t * a->m;
    real largest = a->nulls ? 0 : -(real)INFINITY;
    for (int j = 0; j < a->m; j++)
      if (in[j] > largest) largest = in[j];
    double sum = a->nulls ? a->nulls * exp(-(double)largest) : 0;
    for (int j = 0; j < a->m; j++) sum += (double)(out[j] = (real)exp((double)(in[j] - largest)));
    for (int j = 0; j < a->m; j++) out[j] = (real)((double)out[j] / sum);
  }
}

CH_REF_OP(softmax_backward) {
#pragma omp parallel for num_threads(x->threads)
  for (int64_t t = 0; t < a->n; t++) {
    const real *y = a->y + t * a->m, *dy = a->dy + t * a->m;
    real *dx = a->dx + t * a->m;
    double dot = 0;
    for (int j = 0; j < a->m; j++) dot += (double)y[j] * (double)dy[j];
    for (int j = 0; j < a->m; j++) dx[j] = (real)((double)y[j] * ((double)dy[j] - dot));
  }
}

CH_REF_OP(sigmoid) {
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < a->count; i++) a->y[i] = (real)(1 / (1 + exp(-(double)a->x[i])));
}

CH_REF_OP(sigmoid_backward) {
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < a->count; i++) a->dx[i] = a->dy[i] * a->y[i] * (1 - a->y[i]);
}

static void add_arrays(ch_exec *x, const ch_copy_args *a) {
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < a->count; i++) a->y[i] += a->x[i];
}

CH_REF_OP(copy) {
  if (a->accumulate) {
    add_arrays(x, a);
    return;
  }
  enum { PIECE = 1 << 16 };
#pragma omp parallel for num_threads(x->threads) if (a->count > PIECE)
  for (int64_t begin = 0; begin < a->count; begin += PIECE) {
    size_t bytes = (size_t)(a->count - begin < PIECE ? a->count - begin : PIECE) * sizeof(real);
    if (a->x)
      memcpy(a->y + begin, a->x + begin, bytes);
    else
      memset(a->y + begin, 0, bytes);
  }
}

CH_REF_OP(sumsq) {
  const real *in = a->x;
  for (int64_t array = 0; array < a->arrays; array++, in += a->count) {
    double sum = 0;
    for (int64_t i = 0; i < a->count; i++) sum += (double)in[i] * (double)in[i];
    a->sum[array * a->step] = sum;
    if (a->total) *a->total += sum;
  }
}

CH_REF_OP(multiply) {
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < a->count; i++) a->y[i] = (a->accumulate ? a->y[i] : 0) + a->a[i] * a->b[i];
}

/* One 64-bit random number is used for two columns. */
CH_REF_OP(jitter) {
  uint64_t pairs = ((uint64_t)a->d + 1) / 2;
  double unit = 2 * a->jitter * 0x1p-32, low = 1 - a->jitter;
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->n; t++) {
    real *row = a->factor + (int64_t)t * a->d;
    for (uint64_t p = 0; p < pairs; p++) {
      uint64_t bits = ch_rng_bits(a->rng, (a->rng_base + (uint64_t)t) * pairs + p);
      row[2 * p] = (real)(low + unit * ((double)(uint32_t)bits + 0.5));
      if (2 * p + 1 < (uint64_t)a->d) row[2 * p + 1] = (real)(low + unit * ((double)(bits >> 32) + 0.5));
    }
  }
}

CH_REF_OP(round_bf16) {
  int64_t count = ch_elements(a->count, a->rows);
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < count; i++) a->y[i] = ch_bf16_round((float)a->x[i]);
}

CH_REF_OP(widen_bf16) {
  int64_t count = ch_elements(a->count, a->rows);
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < count; i++) {
    const real value = ch_bf16_value(a->x[i]);
    a->y[i] = a->accumulate ? a->y[i] + value : value;
  }
}
