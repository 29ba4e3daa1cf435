/* Reference: GELU, exact, and gated linear units. */
#include <math.h>

#include "cpu/ref/ref.h"

/* Phi(x), the normal distribution function; erfc keeps the small values of the left tail exact. */
static double normal_cdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }

/* d/dx of x Phi(x) = Phi(x) + x phi(x). */
static double gelu_slope(double x) { return normal_cdf(x) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI); }

static void gelu(ch_exec *x, const ch_gelu_args *a) {
  if (ch_counting(x)) return;
  int64_t count = ch_elements(a->count, a->rows);
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < count; i++) a->y[i] = (real)((double)a->x[i] * normal_cdf((double)a->x[i]));
}

static void gelu_backward(ch_exec *x, const ch_gelu_args *a) {
  if (ch_counting(x)) return;
  int64_t count = ch_elements(a->count, a->rows);
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < count; i++) {
    double in = (double)a->x[i], dy = (double)a->dy[i];
    if (a->y) a->y[i] = (real)(in * normal_cdf(in));
    a->dx[i] = (real)(dy * gelu_slope(in));
  }
}

/* Value and slope of what a gate goes through. */
typedef struct {
  double value, slope;
} curve;

static curve curve_at(ch_activation activation, double g) {
  if (activation != CH_SWIGLU) return (curve){g * normal_cdf(g), gelu_slope(g)};
  double share = 1 / (1 + exp(-g));
  return (curve){g * share, share + g * share * (1 - share)};
}

static void glu(ch_exec *x, const ch_gelu_args *a) {
  if (ch_counting(x)) return;
  int64_t count = ch_elements(a->count, a->rows);
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < count; i++)
    a->y[i] = (real)(curve_at(a->activation, (double)a->x[i]).value * (double)a->u[i]);
}

static void glu_backward(ch_exec *x, const ch_gelu_args *a) {
  if (ch_counting(x)) return;
  int64_t count = ch_elements(a->count, a->rows);
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < count; i++) {
    double u = (double)a->u[i], dy = (double)a->dy[i];
    curve at = curve_at(a->activation, (double)a->x[i]);
    if (a->y) a->y[i] = (real)(at.value * u);
    a->dx[i] = (real)(dy * u * at.slope);
    a->du[i] = (real)(dy * at.value);
  }
}

void ch_ref_fill_gelu(ch_ops *ops) {
  ops->gelu = gelu;
  ops->gelu_backward = gelu_backward;
  ops->glu = glu;
  ops->glu_backward = glu_backward;
}
