#include "pages/chart.h"

#include <math.h>

#include "base/format.h"
#include "pages/page.h"

enum { WIDTH = 560, HEIGHT = 240, LEFT = 56, RIGHT = 14, TOP = 12, BOTTOM = 30, BINS = 280, MOST_TICKS = 20 };

/* A linear axis: values from low to high lie between two pixels; ticks at multiples of step. */
typedef struct axis {
  double low, high, step, begin, end;
} axis;

static double at(const axis *a, double value) {
  return a->begin + (a->end - a->begin) * ((value - a->low) / (a->high - a->low));
}

/* Whatever the values are, the axis has a finite range and a few ticks: a range that is too small to be divided is
 * widened as one of no width is. */
static axis make_axis(double low, double high, int ticks, double begin, double end) {
  const double largest = 1e300, smallest = 1e-12; /* below which numbers are written as 0 */
  low = fmax(fmin(low, largest), -largest);
  high = fmax(fmin(high, largest), low);
  if (!(high - low > fmax(1e-9 * fmax(fabs(low), fabs(high)), smallest * 1e-3))) {
    double room = low != 0 ? fmax(0.1 * fabs(low), smallest) : 1;
    low = low >= 0 && low - room < 0 ? 0 : low - room;
    high = high + room;
  }
  double step = pow(10, floor(log10((high - low) / ticks)));
  while ((high - low) / step > ticks)
    step *= (high - low) / (2 * step) <= ticks ? 2 : (high - low) / (5 * step) <= ticks ? 5 : 10;
  return (axis){.low = low, .high = high, .step = step, .begin = begin, .end = end};
}

/* The i-th multiple of the step on the axis; 0: there is none. */
static int tick(const axis *a, int i, double *value) {
  *value = (ceil(a->low / a->step - 1e-9) + i) * a->step;
  return i < MOST_TICKS && *value <= a->high + 1e-9 * a->step;
}

static void number(FILE *out, double value) {
  double size = fabs(value);
  if (size >= 1e6)
    ch_print(out, "%.4gM", value / 1e6);
  else if (size >= 1e4)
    ch_print(out, "%.4gk", value / 1e3);
  else
    ch_print(out, "%.4g", size < 1e-12 ? 0 : value);
}

static void y_grid(FILE *out, const axis *y) {
  double v;
  for (int i = 0; tick(y, i, &v); i++) {
    ch_print(out,
             "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" /><text class=\"tick\" "
             "text-anchor=\"end\" x=\"%d\" y=\"%.1f\">",
             LEFT, WIDTH - RIGHT, at(y, v), at(y, v), LEFT - 8, at(y, v) + 4);
    number(out, v);
    fputs("</text>", out);
  }
}

static void x_tick(FILE *out, const axis *x, double position, double value, int whole) {
  ch_print(out, "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%d\">", at(x, position),
           HEIGHT - BOTTOM + 20);
  if (whole)
    ch_print(out, "%.6g", value);
  else
    number(out, value);
  fputs("</text>", out);
}

static void x_ticks(FILE *out, const ch_chart *chart, const axis *x) {
  const ch_curve *first = chart->log_x ? chart->series[0].curve : NULL;
  for (int i = 0; first && i < first->count; i++) x_tick(out, x, log(first->x[i]), first->x[i], 1);
  double v;
  for (int i = 0; !first && tick(x, i, &v); i++) x_tick(out, x, v, v, 0);
}

/* What is drawn of a curve: at most BINS points, each the mean of its bin. A step more or less does not show at this
 * width, and files stay small. */
typedef struct points {
  int count;
  double x[BINS], y[BINS], low[BINS], high[BINS];
} points;

static double mean_of(const double *values, int begin, int end) {
  double sum = 0;
  for (int i = begin; i < end; i++) sum += values[i] / (end - begin);
  return sum;
}

static void bin(const ch_chart *chart, const ch_series *s, points *p) {
  const ch_curve *c = s->curve;
  int from = 0;
  while (from < c->count && c->x[from] < chart->x_from) from++;
  int count = c->count - from;
  p->count = count < BINS ? count : BINS;
  for (int b = 0; b < p->count; b++) {
    int begin = from + (int)((long long)count * b / p->count),
        end = from + (int)((long long)count * (b + 1) / p->count);
    p->x[b] = mean_of(c->x, begin, end);
    if (chart->log_x) p->x[b] = log(p->x[b]);
    p->y[b] = mean_of(c->y, begin, end);
    p->low[b] = s->low ? mean_of(s->low, begin, end) : p->y[b];
    p->high[b] = s->high ? mean_of(s->high, begin, end) : p->y[b];
  }
}

/* "s3", and behind the eighth the same colours dashed. */
static const char *class_of(const ch_chart *chart, int index) {
  int colour = chart->series[index].colour ? chart->series[index].colour - 1 : index;
  static const char *const names[CH_SERIES_MOST] = {"s0",      "s1",      "s2",      "s3",      "s4",      "s5",
                                                    "s6",      "s7",      "s0 dash", "s1 dash", "s2 dash", "s3 dash",
                                                    "s4 dash", "s5 dash", "s6 dash", "s7 dash"};
  return names[colour % CH_SERIES_MOST];
}

static void draw_band(FILE *out, const ch_chart *chart, const points *p, int index, const axis *xa, const axis *ya) {
  fprintf(out, "<polygon class=\"%s\" points=\"", class_of(chart, index));
  for (int i = 0; i < p->count; i++)
    if (isfinite(p->low[i])) ch_print(out, "%.1f,%.1f ", at(xa, p->x[i]), at(ya, p->low[i]));
  for (int i = p->count; i-- > 0;)
    if (isfinite(p->high[i])) ch_print(out, "%.1f,%.1f ", at(xa, p->x[i]), at(ya, p->high[i]));
  fputs("\"/>", out);
}

static void draw_curve(FILE *out, const ch_chart *chart, int index, const axis *xa, const axis *ya) {
  const ch_series *s = &chart->series[index];
  points p;
  bin(chart, s, &p);
  if (s->low) draw_band(out, chart, &p, index, xa, ya);
  fprintf(out, "<polyline class=\"%s\" points=\"", class_of(chart, index));
  for (int i = 0; i < p.count; i++)
    if (isfinite(p.y[i])) ch_print(out, "%.1f,%.1f ", at(xa, p.x[i]), at(ya, p.y[i]));
  fputs("\"/>", out);
  for (int i = 0; s->points && i < p.count && s->curve->count <= BINS; i++) { /* marked points are few and exact */
    if (!isfinite(p.y[i])) continue;
    double x = chart->log_x ? exp(p.x[i]) : p.x[i];
    ch_print(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.2\"><title>%s %.6g: %.5g</title></circle>",
             class_of(chart, index), at(xa, p.x[i]), at(ya, p.y[i]), chart->x_name ? chart->x_name : "step", x, p.y[i]);
  }
}

static void head(FILE *out, const char *title, const char *unit) {
  fputs("<figure><figcaption><strong>", out);
  ch_html_text(out, title);
  fputs("</strong> <span>", out);
  ch_html_text(out, unit);
  fputs("</span>", out);
}

static void legend(FILE *out, const ch_chart *chart) {
  if (chart->count < 2) return;
  fputs("<ul>", out);
  for (int i = 0; i < chart->count; i++) {
    const ch_series *s = &chart->series[i];
    fprintf(out, "<li class=\"%s%s\">", class_of(chart, i), s->curve ? "" : " level");
    ch_html_text(out, s->label);
    fputs("</li>", out);
  }
  fputs("</ul>", out);
}

static void widen(double value, double *low, double *high) {
  if (!isfinite(value)) return;
  *low = fmin(*low, value);
  *high = fmax(*high, value);
}

/* The range of everything drawn: of bins, because single steps may stick out far. */
static void ranges(const ch_chart *chart, double *x0, double *x1, double *y0, double *y1) {
  *x0 = chart->log_x ? INFINITY : chart->x_from;
  *y0 = INFINITY;
  *x1 = *y1 = -INFINITY;
  if (chart->from_zero) widen(0, y0, y1);
  for (int i = 0; i < chart->count; i++) {
    const ch_series *s = &chart->series[i];
    points p = {0};
    if (s->curve)
      bin(chart, s, &p);
    else
      widen(s->level, y0, y1);
    for (int b = 0; b < p.count; b++) {
      widen(p.y[b], y0, y1);
      widen(p.low[b], y0, y1);
      widen(p.high[b], y0, y1);
      if (chart->log_x) widen(p.x[b], x0, x1);
    }
    if (p.count && !chart->log_x) widen(s->curve->x[s->curve->count - 1], x0, x1);
  }
  if (chart->log_x && *x1 > *x0) { /* first and last points keep off the edges */
    double slack = 0.04 * (*x1 - *x0);
    *x0 -= slack, *x1 += slack;
  }
  if (!isfinite(*y0) || !isfinite(*y1)) *y0 = 0, *y1 = 1;
  if (!isfinite(*x0) || !isfinite(*x1)) *x0 = 0, *x1 = 1;
}

static void draw(FILE *out, const ch_chart *chart) {
  double x0, x1, y0, y1;
  ranges(chart, &x0, &x1, &y0, &y1);
  double margin = 0.04 * (y1 - y0);
  axis x = make_axis(x0, x1, 7, LEFT, WIDTH - RIGHT);
  axis y = make_axis(chart->from_zero ? 0 : y0 - margin, y1 + margin, 5, HEIGHT - BOTTOM, TOP);
  y_grid(out, &y);
  x_ticks(out, chart, &x);
  for (int i = 0; i < chart->count; i++) {
    const ch_series *s = &chart->series[i];
    if (s->curve)
      draw_curve(out, chart, i, &x, &y);
    else
      ch_print(out, "<line class=\"%s level\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" />", class_of(chart, i), LEFT,
               WIDTH - RIGHT, at(&y, s->level), at(&y, s->level));
  }
}

void ch_chart_write(FILE *out, const ch_chart *chart) {
  head(out, chart->title, chart->unit);
  legend(out, chart);
  fprintf(out, "</figcaption><svg viewBox=\"0 0 %d %d\" role=img>", WIDTH, HEIGHT);
  draw(out, chart);
  fputs("</svg></figure>\n", out);
}

static void draw_bar(FILE *out, const char *class, const axis *y, double left, double width, double value) {
  double top = at(y, value);
  ch_print(out, "<rect class=%s x=%.1f y=%.1f width=%.1f height=%.1f />", class, left, top, width, y->begin - top);
}

void ch_bars_write(FILE *out, const ch_bars *b) {
  double most = b->level;
  for (int i = 0; i < b->count; i++) most = fmax(most, fmax(b->values[i], b->behind ? b->behind[i] : 0));
  axis y = make_axis(0, most > 0 ? 1.04 * most : 1, 4, HEIGHT - BOTTOM, TOP);
  double pitch = (double)(WIDTH - LEFT - RIGHT) / (b->count ? b->count : 1), width = fmin(0.8 * pitch, 44);
  int every = 1 + (b->count - 1) / 16; /* labels that do not touch */
  head(out, b->title, b->unit);
  fprintf(out, "</figcaption><svg viewBox=\"0 0 %d %d\" role=img>", WIDTH, HEIGHT);
  y_grid(out, &y);
  for (int i = 0; i < b->count; i++) {
    double middle = LEFT + pitch * (i + 0.5);
    ch_print(out, "<g><title>%s %d: %.6g</title>", b->axis, i, b->values[i]);
    if (b->behind) draw_bar(out, "behind", &y, middle - width / 2, width, b->behind[i]);
    draw_bar(out, "s0", &y, middle - width / 2, width, b->values[i]);
    fputs("</g>", out);
    if (i % every == 0)
      ch_print(out, "<text class=tick text-anchor=middle x=%.1f y=%d>%d</text>", middle, HEIGHT - BOTTOM + 20, i);
  }
  if (b->level > 0)
    ch_print(out, "<line class=\"s1 level\" x1=%d x2=%d y1=%.1f y2=%.1f />", LEFT, WIDTH - RIGHT, at(&y, b->level),
             at(&y, b->level));
  fputs("</svg></figure>\n", out);
}
