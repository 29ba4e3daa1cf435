/* Reference: RMSNorm. */
#include <math.h>

#include "cpu/ref/ref.h"

CH_REF_OP(rmsnorm) {
#pragma omp parallel for num_threads(x->threads)
  for (int64_t t = 0; t < a->n; t++) {
    const real *in = a->x + t * a->d;
    real *out = a->y + t * a->d;
    double squares = 0;
    for (int j = 0; j < a->d; j++) squares += (double)in[j] * (double)in[j];
    double rstd = 1 / sqrt(squares / a->d + (double)a->eps);
    for (int j = 0; j < a->d; j++) out[j] = (real)((double)in[j] * rstd * (double)a->w[j]);
    a->rstd[t] = (real)rstd;
  }
}

/* With g = w dy and r = rstd: dx = r g - x r^3 <x, g> / d, because dr/dx = -r^3 x / d. */
static void input_gradient(const ch_rmsnorm_args *a, int64_t t) {
  const real *in = a->x + t * a->d, *dy = a->dy + t * a->d;
  real *dx = a->dx + t * a->d;
  double rstd = (double)a->rstd[t], dot = 0;
  for (int j = 0; j < a->d; j++) dot += (double)in[j] * (double)a->w[j] * (double)dy[j];
  double slope = rstd * rstd * rstd * dot / a->d;
  for (int j = 0; j < a->d; j++) {
    double gradient = rstd * (double)a->w[j] * (double)dy[j] - (double)in[j] * slope;
    dx[j] = (real)(a->dx_acc ? (double)dx[j] + gradient : gradient);
  }
}

CH_REF_OP(rmsnorm_backward) {
#pragma omp parallel num_threads(x->threads)
  {
#pragma omp for
    for (int j = 0; j < a->d; j++) { /* parallel over columns: each is one sum in ascending t */
      double sum = 0;
      for (int64_t t = 0; t < a->n; t++)
        sum += (double)a->dy[t * a->d + j] * (double)a->x[t * a->d + j] * (double)a->rstd[t];
      a->dw[j] += (real)sum;
    }
#pragma omp for
    for (int64_t t = 0; t < a->n; t++) input_gradient(a, t);
  }
}
