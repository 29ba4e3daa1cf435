/* Reference: exact GELU, and gated GELU and SiLU. */
#include <math.h>

#include "cpu/ref/ref.h"

/* Phi(x), the normal distribution function; erfc keeps the small values of the left tail exact. */
static double normal_cdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }

/* d/dx of x Phi(x) = Phi(x) + x phi(x). */
static double gelu_slope(double x) { return normal_cdf(x) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI); }

/* Value and slope. */
typedef struct {
  double value, slope;
} gelu_curve;

static gelu_curve curve_at(ch_activation activation, double x) {
  if (activation != CH_SWIGLU) return (gelu_curve){x * normal_cdf(x), gelu_slope(x)};
  double share = 1 / (1 + exp(-x));
  return (gelu_curve){x * share, share + x * share * (1 - share)};
}

CH_REF_OP(activate) {
  int64_t count = ch_elements(a->count, a->rows);
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < count; i++) {
    double u = ch_gated(a->activation) ? (double)a->u[i] : 1;
    a->y[i] = (real)(curve_at(a->activation, (double)a->x[i]).value * u);
  }
}

CH_REF_OP(activate_backward) {
  int64_t count = ch_elements(a->count, a->rows);
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < count; i++) {
    double u = ch_gated(a->activation) ? (double)a->u[i] : 1, dy = (double)a->dy[i];
    gelu_curve at = curve_at(a->activation, (double)a->x[i]);
    if (a->y) a->y[i] = (real)(at.value * u);
    a->dx[i] = (real)(dy * u * at.slope);
    if (ch_gated(a->activation)) a->du[i] = (real)(dy * at.value);
  }
}
