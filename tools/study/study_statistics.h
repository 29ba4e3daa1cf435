/* Means over seeds with their intervals, and when one curve reaches what another ended with. docs/studies.md has the
 * formulas. */
#ifndef CH_STUDY_STATISTICS_H
#define CH_STUDY_STATISTICS_H

#include "pages/history.h"

/* Of one number measured once for every seed. Intervals are Student's, n - 1 degrees of freedom; NaN below two values.
 */
typedef struct ch_estimate {
  int count;
  double mean, deviation; /* sample standard deviation; NaN below two values */
  double low, high;       /* 95 % interval of the mean */
  double low80, high80;   /* 80 % interval */
} ch_estimate;

ch_estimate ch_estimate_of(const double *values, int count);

/* Two-sided quantile of Student's distribution: P(|T| <= t) = level, for `degrees` >= 1 and level in (0,1). */
double ch_student(double level, int degrees);

/* The curve's points smoothed: at each a straight line fitted by least squares, tricube weights over `reach` times the
 * mean distance of points (at least 1; 1 leaves the points as they are). Ends are not bent, as a running mean would.
 * y: [count]. */
void ch_smooth(const ch_curve *curve, double reach, double *y);

/* Where a curve, read as straight lines between its points, first comes down to `level`; NaN: nowhere. A curve that
 * begins below does so at its first point. */
double ch_first_reach(const double *x, const double *y, int count, double level);

/* The value at x, on straight lines between points; NaN outside. */
double ch_value_at(const double *x, const double *y, int count, double at);

/* log of how many times sooner `a` is where `b` ends than b itself; where a does not get there, minus the log of how
 * many times sooner b is where a ends. Times are x, of curves that have been smoothed. *reached: whether a gets there.
 * NaN: neither does, or an empty curve. */
double ch_log_speedup(const double *ax, const double *ay, int a_count, const double *bx, const double *by, int b_count,
                      int *reached);

#endif
