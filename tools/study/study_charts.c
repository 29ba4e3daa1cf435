/* Charts of a study, drawn from its summary: into the page, or each into an SVG file of its own. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "file/dir.h"
#include "file/file.h"
#include "file/json.h"
#include "pages/chart.h"
#include "study/study_tables.h"
#include "study/study_values.h"

#define number ch_number_at
#define text ch_text_at

enum { ROOM = 4 * CH_SERIES_MOST }; /* arrays of a chart */

typedef struct drawing {
  FILE *out;             /* the page, or NULL */
  const char *directory; /* of files, or NULL */
  const json_t *summary, *arms;
  ch_chart chart;
  ch_curve curve[CH_SERIES_MOST];
  double *kept[ROOM];
  int count, code;
} drawing;

/* Numbers of an array, NaN for what is none; freed with the chart. */
static double *numbers(drawing *d, const json_t *array) {
  size_t size = json_array_size(array);
  double *values = d->count < ROOM ? malloc((size + 1) * sizeof *values) : NULL;
  if (!values) {
    d->code = ch_error(CHOIR_ERROR_MEMORY, "no memory for a chart of %zu points", size);
    return NULL;
  }
  for (size_t i = 0; i < size; i++) {
    const json_t *value = json_array_get(array, i);
    values[i] = json_is_number(value) ? json_number_value(value) : (double)NAN;
  }
  d->kept[d->count++] = values;
  return values;
}

static ch_series *add(drawing *d, const char *label, size_t colour, const json_t *x, const json_t *y) {
  if (d->chart.count >= CH_SERIES_MOST || !json_array_size(x)) return NULL;
  ch_curve *c = &d->curve[d->chart.count];
  *c = (ch_curve){.x = numbers(d, x), .y = numbers(d, y), .count = (int)json_array_size(x)};
  if (d->code) return NULL;
  ch_series *s = &d->chart.series[d->chart.count++];
  *s = (ch_series){.curve = c, .label = label, .colour = (int)colour + 1};
  return s;
}

static void save(drawing *d, const char *name) {
  char path[4200], *svg = NULL;
  size_t bytes = 0;
  snprintf(path, sizeof path, "%.4000s/%s.svg", d->directory, name);
  FILE *out = open_memstream(&svg, &bytes);
  if (out) ch_chart_write_svg(out, &d->chart);
  int failed = !out || ferror(out);
  if (out && fclose(out)) failed = 1;
  if (failed)
    d->code = ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for the chart", path);
  else
    d->code = ch_file_save(path, svg, bytes);
  free(svg);
}

/* Draws what was added, if anything was, and forgets it. */
static void finish(drawing *d, const char *name) {
  if (d->chart.count && !d->code) {
    if (d->out) ch_chart_write(d->out, &d->chart);
    if (d->directory) save(d, name);
  }
  for (int i = 0; i < d->count; i++) free(d->kept[i]);
  d->count = 0;
  d->chart = (ch_chart){0};
}

static void start(drawing *d, const char *title, const char *unit) {
  d->chart = (ch_chart){.title = title, .unit = unit};
}

/* A standard deviation on both sides of a curve; none where there is but one seed. */
static void add_band(drawing *d, ch_series *s, const json_t *deviations) {
  double *low = numbers(d, deviations), *high = numbers(d, deviations);
  for (int i = 0; low && high && i < s->curve->count; i++) {
    double deviation = isfinite(high[i]) ? high[i] : 0;
    low[i] = s->curve->y[i] - deviation, high[i] = s->curve->y[i] + deviation;
  }
  s->low = low, s->high = high;
}

/* Loss curves of all arms, a standard deviation around them. */
static void loss_curves(drawing *d, const char *key, const char *deviation_key, const char *title, const char *unit,
                        const char *name) {
  const json_t *arm;
  size_t i;
  start(d, title, unit);
  d->chart.x_from = 0.1 * number(d->summary, "steps");
  json_array_foreach(d->arms, i, arm) {
    const json_t *curve = json_object_get(arm, "curve");
    ch_series *s = add(d, text(arm, "name"), i, json_object_get(curve, "step"), json_object_get(curve, key));
    if (s) add_band(d, s, json_object_get(curve, deviation_key));
  }
  finish(d, name);
}

/* Whether an arm has no curve among differences: it is what others are compared with, at some value of a sweep. */
static int is_reference(const drawing *d, const json_t *arm) {
  const json_t *other;
  size_t i;
  if (!strcmp(text(json_object_get(arm, "difference"), "from"), text(arm, "name"))) return 1;
  json_array_foreach(
      d->arms, i, other) if (!strcmp(text(json_object_get(other, "difference"), "from"), text(arm, "name"))) return 1;
  return 0;
}

static const char *less_reference(const drawing *d) {
  const json_t *last = json_array_get(d->arms, json_array_size(d->arms) - 1);
  int at_values = json_object_get(d->summary, "sweep") && number(last, "row") > 0;
  return at_values ? "Causal loss, less that of the first arm at the same value"
                   : "Causal loss, less that of the first arm";
}

static void differences(drawing *d) {
  const json_t *arm;
  size_t i;
  start(d, less_reference(d), "at equal steps, seed by seed; bands: 95 % intervals");
  d->chart.x_from = 0.1 * number(d->summary, "steps");
  json_array_foreach(d->arms, i, arm) {
    const json_t *difference = json_object_get(arm, "difference"), *curve = json_object_get(difference, "curve");
    if (is_reference(d, arm)) continue;
    ch_series *s = add(d, text(arm, "name"), i, json_object_get(curve, "step"), json_object_get(curve, "mean"));
    if (s) s->low = numbers(d, json_object_get(curve, "low")), s->high = numbers(d, json_object_get(curve, "high"));
  }
  if (d->chart.count && d->chart.count < CH_SERIES_MOST)
    d->chart.series[d->chart.count++] = (ch_series){.level = 0, .label = "the first arm", .colour = 1};
  finish(d, "difference");
}

static void differences_in_time(drawing *d) {
  const json_t *arm, *timed = json_object_get(json_object_get(d->summary, "timing"), "arms");
  double from = INFINITY;
  size_t i;
  start(d, less_reference(d), "at equal seconds, by step times measured in turns; bands: 95 % intervals");
  d->chart.x_name = "second";
  json_array_foreach(timed, i, arm) {
    const json_t *at = json_object_get(arm, "difference_at_seconds"), *seconds = json_object_get(at, "seconds"),
                 *arm_json = json_array_get(d->arms, i);
    if (is_reference(d, arm_json)) continue;
    ch_series *s = add(d, text(arm_json, "name"), i, seconds, json_object_get(at, "mean"));
    if (!s) continue;
    s->low = numbers(d, json_object_get(at, "low")), s->high = numbers(d, json_object_get(at, "high"));
    from = fmin(from, 0.1 * s->curve->x[s->curve->count - 1]);
  }
  d->chart.x_from = isfinite(from) ? from : 0;
  if (d->chart.count && d->chart.count < CH_SERIES_MOST)
    d->chart.series[d->chart.count++] = (ch_series){.level = 0, .label = "the first arm", .colour = 1};
  finish(d, "difference-seconds");
}

/* The final loss over what is swept, one curve for each of the recipe's arms. */
static void swept(drawing *d) {
  const json_t *sweep = json_object_get(d->summary, "sweep"), *arm;
  char labels[CH_SERIES_MOST][64];
  size_t i;
  if (!json_is_object(sweep)) return;
  start(d, "Causal loss at the end", text(sweep, "label"));
  d->chart.log_x = 1;
  d->chart.x_name = text(sweep, "label");
  for (int row = 0; row < CH_SERIES_MOST; row++) {
    json_t *x = json_array(), *y = json_array(), *deviation = json_array();
    json_array_foreach(d->arms, i, arm) {
      const json_t *causal = json_object_get(arm, "causal");
      if ((int)number(arm, "row") != row || !isfinite(number(causal, "mean"))) continue;
      ch_json_add(x, json_incref(json_object_get(arm, "swept")));
      ch_json_add(y, json_incref(json_object_get(causal, "mean")));
      ch_json_add(deviation, json_incref(json_object_get(causal, "deviation")));
      snprintf(labels[row], sizeof labels[row], "%s", text(arm, "name"));
      char *comma = strrchr(labels[row], ',');
      if (comma) *comma = 0;
    }
    ch_series *s = add(d, labels[row], (size_t)row, x, y);
    if (s) {
      s->points = 1;
      add_band(d, s, deviation);
    }
    json_decref(x);
    json_decref(y);
    json_decref(deviation);
  }
  finish(d, "swept");
}

/* What looking at other tokens gives, along training. */
static void gaps(drawing *d) {
  const json_t *arm;
  size_t i;
  start(d, "Causal loss, less that by the router's own routing", "above 0: what looking at other tokens gives");
  d->chart.x_from = 0.1 * number(d->summary, "steps");
  json_array_foreach(d->arms, i, arm) {
    const json_t *curve = json_object_get(arm, "curve");
    ch_series *s = add(d, text(arm, "name"), i, json_object_get(curve, "step"), json_object_get(curve, "causal"));
    double *own = s ? numbers(d, json_object_get(curve, "own")) : NULL, most = 0;
    for (int j = 0; own && j < s->curve->count; j++) {
      s->curve->y[j] -= own[j];
      most = fmax(most, fabs(s->curve->y[j]));
    }
    if (s && !(most > 0)) d->chart.count--; /* looks at nothing */
  }
  finish(d, "gap");
}

/* Loss by batch less the causal one over the size of the pool, of one arm. */
static void pools(drawing *d, const json_t *arm) {
  static const char *const labels[] = {"neighbours", "scattered"};
  char title[160];
  const json_t *row;
  size_t i;
  if (!json_array_size(json_object_get(arm, "pools"))) return;
  snprintf(title, sizeof title, "%s: loss by batch, less the causal loss", text(arm, "name"));
  start(d, title, "over tokens of a pool; above 0: batch routing misjudges the model");
  d->chart.log_x = 1;
  d->chart.x_name = "tokens";
  for (int scattered = 0; scattered < 2; scattered++) {
    json_t *x = json_array(), *y = json_array();
    json_array_foreach(json_object_get(arm, "pools"), i, row) {
      if (json_is_true(json_object_get(row, "scattered")) != scattered) continue;
      ch_json_add(x, json_incref(json_object_get(row, "pool")));
      ch_json_add(y, json_incref(json_object_get(json_object_get(row, "less_causal"), "mean")));
    }
    ch_series *s = add(d, labels[scattered], (size_t)scattered, x, y);
    if (s) s->points = 1;
    json_decref(x);
    json_decref(y);
  }
  if (d->chart.count)
    d->chart.series[d->chart.count++] = (ch_series){.level = 0, .label = "as by thresholds", .colour = 8};
  finish(d, "pools");
}

static void histogram(drawing *d, const json_t *arm, const char *key) {
  const json_t *routed = json_object_get(arm, key);
  char title[160];
  if (!d->out || json_array_size(json_object_get(routed, "histogram")) < 3) return;
  snprintf(title, sizeof title, "%s: experts per token", text(arm, "name"));
  double *values = numbers(d, json_object_get(routed, "histogram"));
  int count = (int)json_array_size(json_object_get(routed, "histogram"));
  for (int i = 0; values && i < count; i++) values[i] *= 100;
  char unit[64];
  snprintf(unit, sizeof unit, "%% of tokens, %s routing", text(routed, "routing"));
  while (values && count > 3 && values[count - 1] < 0.05) count--;
  if (values)
    ch_bars_write(d->out,
                  &(ch_bars){.title = title, .unit = unit, .axis = "experts", .values = values, .count = count});
  finish(d, "");
}

int ch_study_write_charts(FILE *out, const json_t *summary, const char *directory) {
  enum { SHOWN = 4 }; /* arms with pools and histograms of their own; tables have all */
  drawing d = {.out = out, .directory = directory, .summary = summary, .arms = json_object_get(summary, "arms")};
  if (directory) CH_TRY(ch_dir_make(directory));
  const json_t *arm;
  size_t i;
  if (out) fputs("<h2>Curves</h2><div class=charts>\n", out);
  swept(&d);
  loss_curves(&d, "causal", "causal_deviation", "Held-out loss, causal",
              "nats a token over steps; bands: standard deviation over seeds", "causal");
  differences(&d);
  differences_in_time(&d);
  loss_curves(&d, "own", "own_deviation", "Held-out loss, by the router's own routing",
              "may look at other tokens of the batch", "own");
  gaps(&d);
  if (out) fputs("</div>\n<h2>Routing</h2><div class=charts>\n", out);
  json_array_foreach(d.arms, i, arm) if (i < SHOWN || (directory && !out)) {
    histogram(&d, arm, "routing");
    histogram(&d, arm, "routing_causal");
  }
  int shown = 0;
  json_array_foreach(d.arms, i, arm) if (json_array_size(json_object_get(arm, "pools")) && shown++ < SHOWN &&
                                         (out || shown == 1)) pools(&d, arm);
  if (out) fputs("</div>\n", out);
  return d.code;
}
