/* Reads the logs of runs as curves, and writes the report page. */
#include "pages/report.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "choir/version.h"
#include "file/file.h"
#include "file/json.h"
#include "file/path_status.h"
#include "file/run_files.h"
#include "pages/page.h"

enum { MAX_POINTS = 400, MAX_SAMPLES = 12 }; /* maximum points of a curve, maximum text samples on a page */

/* The log lines and fields of each curve: the value of `key`, in an object `within`, as a percentage of `of`. Lines
 * of timing.jsonl about steps have no event name. */
static const struct {
  const char *name, *event, *key, *within, *of;
} CURVE[CH_CURVES] = {{"loss", "step", "loss", NULL, NULL},
                      {"aux_loss", "step", "aux_loss", NULL, NULL},
                      {"z_loss", "step", "z_loss", NULL, NULL},
                      {"rate", "step", "learning_rate", NULL, NULL},
                      {"gradient_norm", "step", "gradient_norm", NULL, NULL},
                      {"dropped", "step", "dropped", NULL, NULL},
                      {"unrouted", "step", "unrouted", NULL, NULL},
                      {"imbalance", "step", "imbalance", NULL, NULL},
                      {"heldout", "eval", "loss", NULL, NULL},
                      {"causal", "eval", "loss", "threshold", NULL},
                      {"bits_per_byte", "eval", "bits_per_byte", NULL, NULL},
                      {"speed", "", "tokens_per_second", NULL, NULL},
                      {"peak_share", "", "gflops", NULL, "peak_gflops"}};

/* Appends a point. First removes points at or after x: timing.jsonl repeats the steps that a resumed run repeats. */
static int add_point(ch_curve *c, double x, double y) {
  while (c->count && c->x[c->count - 1] >= x) c->count--;
  c->xs.size = c->ys.size = (size_t)c->count * sizeof x;
  CH_TRY(ch_buffer_append(&c->xs, &x, sizeof x));
  CH_TRY(ch_buffer_append(&c->ys, &y, sizeof y));
  c->x = (void *)c->xs.data, c->y = (void *)c->ys.data;
  c->count++;
  return CHOIR_OK;
}

static void keep(json_t **slot, json_t *line) {
  json_decref(*slot);
  *slot = json_incref(line);
}

static double step_of(const json_t *line) { return json_number_value(json_object_get(line, "step")); }

/* Appends a sample, and removes those that a resumed run repeats. */
static void add_sample(json_t **samples, json_t *line) {
  if (!*samples) *samples = json_array();
  size_t count = json_array_size(*samples);
  while (count && step_of(json_array_get(*samples, count - 1)) >= step_of(line)) json_array_remove(*samples, --count);
  ch_json_add(*samples, json_incref(line));
}

static int take_line(ch_history *h, json_t *line) {
  const json_t *step = json_object_get(line, "step"), *name = json_object_get(line, "event");
  const char *event = name ? json_string_value(name) : "";
  if (!event) return CHOIR_OK;
  if (!strcmp(event, "run")) keep(&h->run, line);
  if (!strcmp(event, "eval")) keep(&h->eval, line);
  if (!strcmp(event, "process") && !h->process) keep(&h->process, line);
  if (!strcmp(event, "sample")) add_sample(&h->samples, line);
  if (!strcmp(event, "step")) h->tokens = json_number_value(json_object_get(line, "tokens"));
  if (!*event) h->seconds += json_number_value(json_object_get(line, "seconds"));
  for (int i = 0; i < CH_CURVES; i++) {
    const json_t *object = CURVE[i].within ? json_object_get(line, CURVE[i].within) : line,
                 *value = json_object_get(object, CURVE[i].key);
    if (!value && !strcmp(CURVE[i].key, "learning_rate"))
      value = json_object_get(line, "rate"); /* the name before 0.6 */
    double of = CURVE[i].of ? json_number_value(json_object_get(line, CURVE[i].of)) / 100 : 1;
    if (strcmp(event, CURVE[i].event) || !json_is_number(step) || !json_is_number(value) || !(of > 0)) continue;
    CH_TRY(add_point(&h->curve[i], json_number_value(step), json_number_value(value) / of));
  }
  return CHOIR_OK;
}

/* Reads every line that is a JSON object. Other lines (of a killed process) are skipped, with a notice for the
 * first; an incomplete last line is skipped silently, because it is still being written. */
static int read_lines(FILE *file, const char *name, ch_history *history) {
  char why[160] = "", *text = NULL;
  size_t capacity = 0;
  long number = 0, first = 0, broken = 0;
  int code = CHOIR_OK;
  ssize_t size = 0;
  while (!code && (size = getline(&text, &capacity, file)) > 0 && text[size - 1] == '\n') {
    json_error_t error;
    json_t *line = json_loadb(text, (size_t)size - 1, 0, &error);
    number++;
    if (json_is_object(line)) {
      code = take_line(history, line);
    } else if (!broken++) {
      first = number;
      snprintf(why, sizeof why, "%s", line ? "not an object" : error.text);
    }
    json_decref(line);
  }
  if (!code && size < 0 && !feof(file)) code = ch_error_errno("%s: cannot read", name); /* or no memory for a line */
  free(text);
  if (!code && broken)
    ch_notice("%s: %ld lines that are not JSON are left out; the first is line %ld: %s", name, broken, first, why);
  return code;
}

static int read_file(const char *path, int required, ch_history *history) {
  int there, fd;
  CH_TRY(ch_regular_exists(path, &there));
  if (!there && !required) return CHOIR_OK;
  CH_TRY(ch_open_regular(path, O_RDONLY, &fd));
  FILE *file = fdopen(fd, "r");
  if (!file) return close(fd), ch_error_errno("%s: cannot open", path);
  int code = read_lines(file, path, history);
  fclose(file);
  return code;
}

int ch_history_parse(FILE *metrics, FILE *timing, ch_history *history) {
  *history = (ch_history){.tokens = 0};
  int code = read_lines(metrics, "metrics", history);
  if (!code) code = read_lines(timing, "timing", history);
  if (code) ch_history_free(history);
  return code;
}

int ch_history_read(const char *run_directory, ch_history *history) {
  char path[4096];
  *history = (ch_history){.tokens = 0};
  snprintf(path, sizeof path, "%s/" CH_RUN_METRICS, run_directory);
  int code = read_file(path, 1, history);
  if (!code && !history->curve[0].count) code = ch_error(CHOIR_ERROR_FORMAT, "%s: has no step yet; train first", path);
  snprintf(path, sizeof path, "%s/" CH_RUN_TIMING, run_directory);
  if (!code) code = read_file(path, 0, history);
  if (code) ch_history_free(history);
  return code;
}

void ch_history_free(ch_history *history) {
  for (int i = 0; i < CH_CURVES; i++) {
    free(history->curve[i].xs.data);
    free(history->curve[i].ys.data);
  }
  json_decref(history->run);
  json_decref(history->eval);
  json_decref(history->process);
  json_decref(history->samples);
  *history = (ch_history){.tokens = 0};
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median, because pauses of a run distort the mean. NaN: also if there is no memory. */
static double median(const ch_curve *c) {
  double *sorted = c->count ? reallocarray(NULL, (size_t)c->count, sizeof *sorted) : NULL;
  if (!sorted) return (double)NAN;
  memcpy(sorted, c->y, (size_t)c->count * sizeof *sorted);
  qsort(sorted, (size_t)c->count, sizeof *sorted, by_value);
  double middle = sorted[(c->count - 1) / 2] / 2 + sorted[c->count / 2] / 2;
  free(sorted);
  return middle;
}

/* The mean of values begin .. end-1, without computing their sum, which may overflow. */
static double mean(const double *values, int begin, int end) {
  double sum = 0;
  for (int i = begin; i < end; i++) sum += values[i] / (end - begin);
  return sum;
}

/* A number; integers keep all their digits. */
static json_t *number_of(double value) {
  return value == rint(value) && fabs(value) < 0x1p53 ? json_integer((json_int_t)value) : ch_json_number(value);
}

static json_t *curve_json(const ch_curve *c) {
  json_t *root = json_object(), *x = json_array(), *y = json_array();
  int points = c->count < MAX_POINTS ? c->count : MAX_POINTS;
  for (int i = 0; i < points; i++) {
    int begin = (int)((int64_t)c->count * i / points), end = (int)((int64_t)c->count * (i + 1) / points);
    ch_json_add(x, number_of(points < c->count ? rint(mean(c->x, begin, end)) : c->x[i]));
    ch_json_add(y, number_of(mean(c->y, begin, end)));
  }
  ch_json_put(root, "x", x);
  ch_json_put(root, "y", y);
  ch_json_put(root, "last", number_of(c->y[c->count - 1]));
  ch_json_put(root, "median", number_of(median(c)));
  return root;
}

/* The last sample, and earlier ones at equal distances. */
static json_t *samples_json(const json_t *samples) {
  json_t *some = json_array();
  size_t count = json_array_size(samples), shown = count < MAX_SAMPLES ? count : MAX_SAMPLES;
  for (size_t i = 1; i <= shown; i++) ch_json_add(some, json_incref(json_array_get(samples, count * i / shown - 1)));
  return some;
}

json_t *ch_history_json(const char *name, const ch_history *h) {
  const ch_curve *loss = &h->curve[0];
  json_t *curves = json_object(), *root = json_object();
  for (int i = 0; i < CH_CURVES; i++)
    if (h->curve[i].count) ch_json_put(curves, CURVE[i].name, curve_json(&h->curve[i]));
  ch_json_put(root, "name", ch_json_name(name));
  ch_json_put(root, "run", h->run ? json_incref(h->run) : json_object());
  ch_json_put(root, "eval", h->eval ? json_incref(h->eval) : json_object());
  ch_json_put(root, "process", h->process ? json_incref(h->process) : json_object());
  ch_json_put(root, "samples", samples_json(h->samples));
  ch_json_put(root, "seconds", ch_json_number(h->seconds));
  ch_json_put(root, "steps", number_of(loss->count ? loss->x[loss->count - 1] : 0));
  ch_json_put(root, "tokens", number_of(h->tokens));
  ch_json_put(root, "curves", curves);
  return root;
}

/* ---- the page ---- */

/* Adds the data's name from RUN/data.path; a run copied without that file has none. */
static int add_data(json_t *run, const char *directory) {
  const char *file = CH_IN(directory, CH_RUN_DATA);
  char *path;
  size_t size;
  int there;
  CH_TRY(ch_regular_exists(file, &there));
  if (!there) return CHOIR_OK;
  CH_TRY(ch_file_read(file, 4095, &path, &size));
  ch_json_put(run, "data", ch_json_name(path));
  free(path);
  return CHOIR_OK;
}

static int add_run(json_t *runs, const char *directory) {
  ch_history history;
  CH_TRY(ch_history_read(directory, &history));
  json_t *run = ch_history_json(directory, &history);
  int code = run ? add_data(run, directory) : CHOIR_OK;
  ch_json_add(runs, run);
  ch_history_free(&history);
  return code;
}

int ch_report_write(const char *const *run_directories, int count, const char *output) {
  if (count < 1 || count > CH_REPORT_MAX)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%d runs; a report is about 1 to %d", count, CH_REPORT_MAX);
  json_t *data = json_object(), *runs = json_array();
  int code = CHOIR_OK;
  for (int i = 0; i < count && !code; i++) code = add_run(runs, run_directories[i]);
  ch_json_put(data, "version", json_string(choir_version()));
  ch_json_put(data, "runs", runs);
  const char *name = json_string_value(json_object_get(json_array_get(runs, 0), "name")); /* valid UTF-8 */
  const ch_page page = {.title = count > 1 || !name ? "runs compared" : name, .script = {ch_report_js}};
  if (!code) return ch_page_save(&page, data, output);
  json_decref(data);
  return code;
}
