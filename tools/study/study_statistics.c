#include "study/study_statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* P(|T| <= t), by the finite sums for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4). */
static double within(double t, int degrees) {
  double angle = atan(t / sqrt(degrees)), c = cos(angle) * cos(angle), term = 1, sum = 0;
  int odd = degrees % 2;
  for (int i = odd ? 3 : 2; i <= degrees; i += 2) {
    sum += term;
    term *= c * (i - 1) / i;
  }
  if (!odd) return sin(angle) * sum;
  return 2 / M_PI * (angle + (degrees > 1 ? sin(angle) * cos(angle) * sum : 0));
}

double ch_student(double level, int degrees) {
  double low = 0, high = 1;
  while (within(high, degrees) < level && high < 1e12) high *= 2;
  for (int i = 0; i < 200 && high - low > 1e-14 * high; i++) {
    double middle = (low + high) / 2;
    if (within(middle, degrees) < level)
      low = middle;
    else
      high = middle;
  }
  return (low + high) / 2;
}

ch_estimate ch_estimate_of(const double *values, int count) {
  const double none = (double)NAN;
  ch_estimate e = {count, none, none, none, none, none, none};
  if (count < 1) return e;
  double sum = 0, squares = 0;
  for (int i = 0; i < count; i++) sum += values[i];
  e.mean = sum / count;
  if (count < 2) return e;
  for (int i = 0; i < count; i++) squares += (values[i] - e.mean) * (values[i] - e.mean);
  e.deviation = sqrt(squares / (count - 1));
  double half = e.deviation / sqrt(count), wide = ch_student(0.95, count - 1) * half,
         narrow = ch_student(0.80, count - 1) * half;
  e.low = e.mean - wide, e.high = e.mean + wide;
  e.low80 = e.mean - narrow, e.high80 = e.mean + narrow;
  return e;
}

/* Least squares of a line through the points, weighted by (1 - |d|^3)^3, at x = at. */
static double line_at(const ch_curve *c, double at, double reach) {
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (int i = 0; i < c->count; i++) {
    double x = (c->x[i] - at) / reach, d = fabs(x);
    if (d >= 1) continue;
    double k = 1 - d * d * d, weight = k * k * k;
    w += weight, wx += weight * x, wy += weight * c->y[i];
    wxx += weight * x * x, wxy += weight * x * c->y[i];
  }
  double det = w * wxx - wx * wx;
  return det > 1e-12 * w * w ? (wxx * wy - wx * wxy) / det : wy / w;
}

void ch_smooth(const ch_curve *c, double reach, double *y) {
  double distance = c->count > 1 ? (c->x[c->count - 1] - c->x[0]) / (c->count - 1) : 1;
  for (int i = 0; i < c->count; i++) y[i] = line_at(c, c->x[i], reach * distance);
}

double ch_first_reach(const double *x, const double *y, int count, double level) {
  if (count > 0 && y[0] <= level) return x[0];
  for (int i = 1; i < count; i++)
    if (y[i] <= level) return x[i - 1] + (x[i] - x[i - 1]) * (y[i - 1] - level) / (y[i - 1] - y[i]);
  return (double)NAN;
}

double ch_value_at(const double *x, const double *y, int count, double at) {
  for (int i = 0; i < count; i++) {
    if (x[i] == at) return y[i];
    if (i > 0 && x[i - 1] < at && at < x[i]) return y[i - 1] + (y[i] - y[i - 1]) * (at - x[i - 1]) / (x[i] - x[i - 1]);
  }
  return (double)NAN;
}

double ch_log_speedup(const double *ax, const double *ay, int a_count, const double *bx, const double *by, int b_count,
                      int *reached) {
  *reached = 0;
  if (!a_count || !b_count) return (double)NAN;
  double sooner = ch_first_reach(ax, ay, a_count, by[b_count - 1]);
  *reached = isfinite(sooner);
  if (*reached) return log(bx[b_count - 1] / sooner);
  return -log(ax[a_count - 1] / ch_first_reach(bx, by, b_count, ay[a_count - 1]));
}
