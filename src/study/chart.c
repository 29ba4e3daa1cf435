#include "study/chart.h"

#include <math.h>

#include "study/page.h"

enum { WIDTH = 560, HEIGHT = 240, LEFT = 56, RIGHT = 14, TOP = 12, BOTTOM = 30, BINS = 280 };

/* A linear axis: values from low to high lie between two pixels; ticks at multiples of step. */
typedef struct axis {
  double low, high, step, begin, end;
} axis;

static double at(const axis *a, double value) {
  return a->begin + (a->end - a->begin) * (value - a->low) / (a->high - a->low);
}

static axis make_axis(double low, double high, int ticks, double begin, double end) {
  if (!(high - low > 1e-9 * fmax(fabs(low), fabs(high)))) { /* also where rounding alone tells them apart */
    double room = low != 0 ? 0.1 * fabs(low) : 1;
    low = low >= 0 && low - room < 0 ? 0 : low - room;
    high = high + room;
  }
  double step = pow(10, floor(log10((high - low) / ticks)));
  while ((high - low) / step > ticks)
    step *= (high - low) / (2 * step) <= ticks ? 2 : (high - low) / (5 * step) <= ticks ? 5 : 10;
  return (axis){.low = low, .high = high, .step = step, .begin = begin, .end = end};
}

static void number(FILE *out, double value) {
  double size = fabs(value);
  if (size >= 1e6)
    fprintf(out, "%.4gM", value / 1e6);
  else if (size >= 1e4)
    fprintf(out, "%.4gk", value / 1e3);
  else
    fprintf(out, "%.4g", size < 1e-12 ? 0 : value);
}

static void y_grid(FILE *out, const axis *y) {
  for (double v = ceil(y->low / y->step - 1e-9) * y->step; v <= y->high + 1e-9 * y->step; v += y->step) {
    fprintf(out, "<line class=grid x1=%d x2=%d y1=%.1f y2=%.1f /><text class=tick text-anchor=end x=%d y=%.1f>", LEFT,
            WIDTH - RIGHT, at(y, v), at(y, v), LEFT - 8, at(y, v) + 4);
    number(out, v);
    fputs("</text>", out);
  }
}

static void x_ticks(FILE *out, const axis *x) {
  for (double v = ceil(x->low / x->step - 1e-9) * x->step; v <= x->high + 1e-9 * x->step; v += x->step) {
    fprintf(out, "<text class=tick text-anchor=middle x=%.1f y=%d>", at(x, v), HEIGHT - BOTTOM + 20);
    number(out, v);
    fputs("</text>", out);
  }
}

/* At most BINS points, each the mean of its bin: a step more or less does not show at this width, and files stay small.
 */
static int binned(const ch_curve *c, double *x, double *y) {
  int bins = c->count < BINS ? c->count : BINS;
  for (int b = 0; b < bins; b++) {
    int begin = (int)((long long)c->count * b / bins), end = (int)((long long)c->count * (b + 1) / bins);
    x[b] = y[b] = 0;
    for (int i = begin; i < end; i++) {
      x[b] += c->x[i] / (end - begin);
      y[b] += c->y[i] / (end - begin);
    }
  }
  return bins;
}

static void draw_curve(FILE *out, const ch_series *s, int index, const axis *xa, const axis *ya) {
  double x[BINS], y[BINS];
  int count = s->points ? s->curve->count : 0; /* marked points are few and exact */
  int bins = binned(s->curve, x, y);
  fprintf(out, "<polyline class=s%d points=\"", index);
  for (int i = 0; i < bins; i++) fprintf(out, "%.1f,%.1f ", at(xa, x[i]), at(ya, y[i]));
  fputs("\"/>", out);
  for (int i = 0; i < count && count <= BINS; i++)
    fprintf(out, "<circle class=s%d cx=%.1f cy=%.1f r=3.2><title>step %.0f: %.5g</title></circle>", index,
            at(xa, s->curve->x[i]), at(ya, s->curve->y[i]), s->curve->x[i], s->curve->y[i]);
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
    fprintf(out, "<li class=\"s%d%s\">", i, s->curve ? "" : " level");
    ch_html_text(out, s->label);
    fputs("</li>", out);
  }
  fputs("</ul>", out);
}

static void widen(double value, double *low, double *high) {
  *low = fmin(*low, value);
  *high = fmax(*high, value);
}

/* The range of everything drawn: of bins, because single steps may stick out far. */
static void ranges(const ch_chart *chart, double *x0, double *x1, double *y0, double *y1) {
  *x0 = 0;
  *y0 = INFINITY;
  *x1 = *y1 = -INFINITY;
  if (chart->from_zero) widen(0, y0, y1);
  for (int i = 0; i < chart->count; i++) {
    const ch_series *s = &chart->series[i];
    double x[BINS], y[BINS];
    int bins = s->curve ? binned(s->curve, x, y) : 0;
    if (!s->curve)
      widen(s->level, y0, y1);
    else if (s->curve->count)
      widen(s->curve->x[s->curve->count - 1], x0, x1);
    for (int b = 0; b < bins; b++) widen(y[b], y0, y1);
  }
}

void ch_chart_write(FILE *out, const ch_chart *chart) {
  double x0, x1, y0, y1;
  ranges(chart, &x0, &x1, &y0, &y1);
  double margin = 0.04 * (y1 - y0);
  axis x = make_axis(x0, x1, 7, LEFT, WIDTH - RIGHT);
  axis y = make_axis(chart->from_zero ? 0 : y0 - margin, y1 + margin, 5, HEIGHT - BOTTOM, TOP);
  head(out, chart->title, chart->unit);
  legend(out, chart);
  fprintf(out, "</figcaption><svg viewBox=\"0 0 %d %d\" role=img>", WIDTH, HEIGHT);
  y_grid(out, &y);
  x_ticks(out, &x);
  for (int i = 0; i < chart->count; i++) {
    const ch_series *s = &chart->series[i];
    if (s->curve)
      draw_curve(out, s, i, &x, &y);
    else
      fprintf(out, "<line class=\"s%d level\" x1=%d x2=%d y1=%.1f y2=%.1f />", i, LEFT, WIDTH - RIGHT, at(&y, s->level),
              at(&y, s->level));
  }
  fputs("</svg></figure>\n", out);
}

static void draw_bar(FILE *out, const char *class, const axis *y, double left, double width, double value) {
  double top = at(y, value);
  fprintf(out, "<rect class=%s x=%.1f y=%.1f width=%.1f height=%.1f />", class, left, top, width, y->begin - top);
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
    fprintf(out, "<g><title>%s %d: %.6g</title>", b->axis, i, b->values[i]);
    if (b->behind) draw_bar(out, "behind", &y, middle - width / 2, width, b->behind[i]);
    draw_bar(out, "s0", &y, middle - width / 2, width, b->values[i]);
    fputs("</g>", out);
    if (i % every == 0)
      fprintf(out, "<text class=tick text-anchor=middle x=%.1f y=%d>%d</text>", middle, HEIGHT - BOTTOM + 20, i);
  }
  if (b->level > 0)
    fprintf(out, "<line class=\"s1 level\" x1=%d x2=%d y1=%.1f y2=%.1f />", LEFT, WIDTH - RIGHT, at(&y, b->level),
            at(&y, b->level));
  fputs("</svg></figure>\n", out);
}
