/* Charts as inline SVG, coloured by the page's style sheet so that they follow its light and dark modes. */
#ifndef CH_PAGES_CHART_H
#define CH_PAGES_CHART_H

#include <stdio.h>

#include "pages/history.h"

enum { CH_SERIES_MOST = 16 }; /* colours repeat, dashed, behind the eighth */

typedef struct ch_series {
  const ch_curve *curve; /* NULL: a dashed level at `level` */
  double level;
  const char *label;
  int colour;               /* from 1; 0: by its place among the series */
  int points;               /* nonzero: marks every point */
  const double *low, *high; /* a band around the curve, as many values as it has points; NULL: none */
} ch_series;

typedef struct ch_chart {
  const char *title, *unit;
  ch_series series[CH_SERIES_MOST];
  int count;
  int from_zero;      /* the y axis starts at 0 */
  int log_x;          /* the x axis is logarithmic and shows the points' values, which are few */
  double x_from;      /* points before are not drawn: the beginning of a loss would flatten the rest */
  const char *x_name; /* what x counts, in the notes on points; NULL: "step" */
} ch_chart;

/* A figure with title, legend and curves over training steps. */
void ch_chart_write(FILE *out, const ch_chart *chart);

typedef struct ch_bars {
  const char *title, *unit, *axis; /* axis: what a bar's number is, "expert" */
  const double *values;
  const double *behind; /* drawn paler behind, or NULL */
  int count;
  double level; /* a dashed line, or 0 */
} ch_bars;
void ch_bars_write(FILE *out, const ch_bars *bars);

#endif
