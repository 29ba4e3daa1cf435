/* The statistics of studies against naive ones on made-up numbers and curves. */
#include <math.h>

#include "study/study_statistics.h"
#include "testing.h"

/* Tables of Student's distribution, and its density summed up. */
static void student(void **state) {
  (void)state;
  static const struct {
    double level, t;
    int degrees;
  } table[] = {{.95, 12.7062, 1}, {.95, 4.30265, 2}, {.95, 3.18245, 3}, {.95, 2.77645, 4},  {.80, 3.07768, 1},
               {.80, 1.88562, 2}, {.80, 1.63774, 3}, {.80, 1.53321, 4}, {.95, 2.22814, 10}, {.95, 1.98397, 100}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    double t = ch_student(table[i].level, table[i].degrees);
    if (!(fabs(t / table[i].t - 1) < 1e-5)) fail_msg("t(%g, %d) = %g", table[i].level, table[i].degrees, t);
  }
  for (int n = 1; n < 12; n++) {
    double t = ch_student(0.9, n), sum = 0, step = t / 200000;
    for (int i = 0; i < 200000; i++) {
      double x = (i + 0.5) * step;
      sum +=
          2 * step * exp(lgamma((n + 1) / 2.0) - lgamma(n / 2.0)) / sqrt(n * M_PI) * pow(1 + x * x / n, -(n + 1) / 2.0);
    }
    if (!(fabs(sum - 0.9) < 1e-6)) fail_msg("P(|T_%d| <= %g) = %g", n, t, sum);
  }
}

static void estimates(void **state) {
  (void)state;
  const double v[] = {4.1, 3.9, 4.4};
  ch_estimate e = ch_estimate_of(v, 3);
  double mean = 12.4 / 3, s2 = 0;
  for (int i = 0; i < 3; i++) s2 += (v[i] - mean) * (v[i] - mean) / 2;
  assert_true(fabs(e.mean - mean) < 1e-12 && fabs(e.deviation - sqrt(s2)) < 1e-12);
  assert_true(fabs(e.high - (mean + 4.30265273 * sqrt(s2 / 3))) < 1e-6);
  assert_true(fabs(e.low80 - (mean - 1.88561808 * sqrt(s2 / 3))) < 1e-6);
  e = ch_estimate_of(v, 1);
  assert_true(e.mean == 4.1 && isnan(e.low) && isnan(e.deviation));
  assert_true(isnan(ch_estimate_of(v, 0).mean));
  double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};
  assert_true(ch_median(odd, 3) == 2 && ch_median(even, 4) == 2.5 && isnan(ch_median(odd, 0)));
}

/* The weighted sum of squares at the fitted value is no larger than nearby: no normal equations here. */
static void smoothing(void **state) {
  (void)state;
  enum { N = 40 };
  double x[N], y[N], out[N];
  for (int i = 0; i < N; i++) {
    x[i] = 250.0 * (i + 1);
    y[i] = 4 + 2 * exp(-i / 9.0) + 0.05 * (2 * ch_rng_uniform(ch_rng_make(3, CH_STREAM_TEST, 0), (uint64_t)i) - 1);
  }
  ch_curve c = {.x = x, .y = y, .count = N};
  ch_smooth(&c, 4, out);
  for (int i = 0; i < N; i += 3) {
    double best = INFINITY, value = 0; /* over a fine grid of lines through (x_i, v) with slope b */
    for (double v = out[i] - 0.01; v <= out[i] + 0.01; v += 0.0005)
      for (double b = -0.5; b <= 0.1; b += 0.002) {
        double sum = 0;
        for (int j = 0; j < N; j++) {
          double d = fabs(x[j] - x[i]) / 1000, k = d < 1 ? pow(1 - d * d * d, 3) : 0,
                 r = y[j] - v - b * (x[j] - x[i]) / 250;
          sum += k * r * r;
        }
        if (sum < best) best = sum, value = v;
      }
    if (!(fabs(value - out[i]) < 0.002)) fail_msg("point %d: %g, not %g", i, out[i], value);
  }
  ch_smooth(&c, 1, out);
  for (int i = 0; i < N; i++) assert_true(out[i] == y[i]);
  for (int i = 0; i < N; i++) y[i] = 7 - 0.001 * x[i]; /* a line stays one, to its ends */
  ch_smooth(&c, 4, out);
  for (int i = 0; i < N; i++) assert_true(fabs(out[i] - y[i]) < 1e-9);
}

/* Against a walk in small steps. */
static void reaching(void **state) {
  (void)state;
  const double x[] = {100, 200, 300, 400, 500}, y[] = {6, 5, 4.5, 4.6, 4.2}, slow[] = {6.5, 6, 5.5, 5.2, 4.8};
  for (double level = 4.05; level < 6.2; level += 0.1) {
    double naive = NAN;
    for (double at = 100; at <= 500 && isnan(naive); at += 0.01) {
      int i = at >= 500 ? 3 : (int)(at / 100) - 1;
      if (y[i] + (y[i + 1] - y[i]) * (at - x[i]) / 100 <= level) naive = at;
    }
    double got = ch_first_reach(x, y, 5, level);
    if (isnan(naive) ? !isnan(got) : !(fabs(got - naive) < 0.02)) fail_msg("%g: %g, not %g", level, got, naive);
  }
  int reached;
  double there = ch_log_speedup(x, y, 5, x, slow, 5, &reached);
  assert_true(reached && fabs(exp(there) - 500 / 240.0) < 1e-9); /* 4.8 lies between 5 at 200 and 4.5 at 300 */
  double back = ch_log_speedup(x, slow, 5, x, y, 5, &reached);
  assert_true(!reached && fabs(back + there) < 1e-12);
  assert_true(ch_log_speedup(x, y, 5, x, y, 5, &reached) == 0 && reached);
  assert_true(ch_value_at(x, y, 5, 250) == 4.75 && ch_value_at(x, y, 5, 500) == 4.2);
  assert_true(isnan(ch_value_at(x, y, 5, 501)) && isnan(ch_value_at(x, y, 5, 99)));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(student), cmocka_unit_test(estimates),
                                     cmocka_unit_test(smoothing), cmocka_unit_test(reaching)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
