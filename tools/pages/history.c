#include "pages/history.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Appends a point. Points at or behind x are dropped first: timing.jsonl repeats the steps that a resumed run repeats.
 */
static int add_point(ch_curve *c, double x, double y) {
  while (c->count && c->x[c->count - 1] >= x) c->count--;
  if (c->count == c->room) {
    int room = c->room ? 2 * c->room : 256;
    double *xs = reallocarray(c->x, (size_t)room, sizeof *xs);
    if (xs) c->x = xs;
    double *ys = reallocarray(c->y, (size_t)room, sizeof *ys);
    if (ys) c->y = ys;
    if (!xs || !ys) return ch_error(CHOIR_ERROR_MEMORY, "no memory for a curve of %d points", room);
    c->room = room;
  }
  c->x[c->count] = x;
  c->y[c->count++] = y;
  return CHOIR_OK;
}

/* Adds line[key] to a curve at line["step"], where the line has both. */
static int add(ch_history *h, ch_curve_name name, const json_t *line, const char *key) {
  const json_t *step = json_object_get(line, "step"), *value = json_object_get(line, key);
  if (!json_is_number(step) || !json_is_number(value)) return CHOIR_OK;
  return add_point(&h->curve[name], json_number_value(step), json_number_value(value));
}

/* The loss by thresholds stands in an object of its own. */
static int add_causal(ch_history *h, const json_t *line) {
  const json_t *step = json_object_get(line, "step"),
               *value = json_object_get(json_object_get(line, "threshold"), "loss");
  if (!json_is_number(step) || !json_is_number(value)) return CHOIR_OK;
  return add_point(&h->curve[CH_THRESHOLD_LOSS], json_number_value(step), json_number_value(value));
}

static void keep(json_t **slot, json_t *line) {
  json_decref(*slot);
  *slot = json_incref(line);
}

static int take_metrics(ch_history *h, json_t *line) {
  const char *event = json_string_value(json_object_get(line, "event"));
  if (!event) return CHOIR_OK;
  if (!strcmp(event, "run")) keep(&h->run, line);
  if (!strcmp(event, "step")) {
    CH_TRY(add(h, CH_LOSS, line, "loss"));
    CH_TRY(add(h, CH_AUX_LOSS, line, "aux_loss"));
    CH_TRY(add(h, CH_RATE, line, "rate"));
    CH_TRY(add(h, CH_GRADIENT_NORM, line, "gradient_norm"));
    CH_TRY(add(h, CH_DROPPED, line, "dropped"));
    CH_TRY(add(h, CH_UNROUTED, line, "unrouted"));
    CH_TRY(add(h, CH_IMBALANCE, line, "imbalance"));
    h->tokens = json_number_value(json_object_get(line, "tokens"));
  }
  if (!strcmp(event, "eval")) {
    keep(&h->eval, line);
    if (json_array_append(h->evals, line)) return ch_error(CHOIR_ERROR_MEMORY, "no memory for an evaluation");
    CH_TRY(add(h, CH_HELDOUT_LOSS, line, "loss"));
    CH_TRY(add_causal(h, line));
    CH_TRY(add(h, CH_BITS_PER_BYTE, line, "bits_per_byte"));
  }
  return CHOIR_OK;
}

static int take_timing(ch_history *h, json_t *line) {
  const json_t *step = json_object_get(line, "step"), *gflops = json_object_get(line, "gflops");
  double peak = json_number_value(json_object_get(line, "peak_gflops"));
  CH_TRY(add(h, CH_TOKENS_PER_SECOND, line, "tokens_per_second"));
  if (!json_is_number(step) || !json_is_number(gflops) || !(peak > 0)) return CHOIR_OK;
  return add_point(&h->curve[CH_PEAK_SHARE], json_number_value(step), 100 * json_number_value(gflops) / peak);
}

enum { SHORTEST_ROOM = 4096, LONGEST_LINE = 16 << 20 };

typedef struct text_line {
  char *text;
  size_t size, room; /* a line of more than LONGEST_LINE bytes has its size, and its beginning */
} text_line;

static int has_room(text_line *line) {
  if (line->size < line->room) return 1;
  size_t room = line->room ? 2 * line->room : SHORTEST_ROOM;
  char *text = room > LONGEST_LINE ? NULL : realloc(line->text, room);
  if (!text) return 0;
  line->text = text, line->room = room;
  return 1;
}

/* The next line. *more is 0 where no whole one is left; the rest is still being written. */
static int next_line(FILE *file, text_line *line, int *more) {
  int c;
  line->size = 0;
  while ((c = getc_unlocked(file)) != EOF && c != '\n') {
    if (has_room(line))
      line->text[line->size] = (char)c;
    else if (line->room < LONGEST_LINE)
      return ch_error(CHOIR_ERROR_MEMORY, "no memory for a line");
    line->size++;
  }
  *more = c == '\n';
  return CHOIR_OK;
}

/* Hands every line of JSON to `take`. What is none (a process was killed, or the machine, while it wrote) is left out,
 * with a notice of the first. */
static int read_lines(FILE *file, const char *name, int (*take)(ch_history *, json_t *), ch_history *history) {
  char why[160] = "";
  text_line text = {NULL, 0, 0};
  long number = 0, first = 0, broken = 0;
  int more = 1, code = CHOIR_OK;
  while (!code && !(code = next_line(file, &text, &more)) && more) {
    number++;
    json_error_t error = {.text = "too long"};
    json_t *line = text.size <= LONGEST_LINE ? json_loadb(text.text ? text.text : "", text.size, 0, &error) : NULL;
    if (json_is_object(line)) {
      code = take(history, line);
    } else if (!broken++) {
      first = number;
      snprintf(why, sizeof why, "%s", line ? "not an object" : error.text);
    }
    json_decref(line);
  }
  if (!code && ferror(file)) code = ch_error_errno("%s: cannot read", name);
  free(text.text);
  if (!code && broken)
    ch_notice("%s: %ld lines that are not JSON are left out; the first is line %ld: %s", name, broken, first, why);
  return code;
}

static int read_file(const char *path, int required, int (*take)(ch_history *, json_t *), ch_history *history) {
  FILE *file = fopen(path, "r");
  if (!file) return required || errno != ENOENT ? ch_error_errno("%s: cannot open", path) : CHOIR_OK;
  int code = read_lines(file, path, take, history);
  fclose(file);
  return code;
}

int ch_history_parse(FILE *metrics, FILE *timing, ch_history *history) {
  *history = (ch_history){.evals = json_array()};
  int code = read_lines(metrics, "metrics", take_metrics, history);
  if (!code) code = read_lines(timing, "timing", take_timing, history);
  if (code) ch_history_free(history);
  return code;
}

int ch_history_read(const char *run_directory, ch_history *history) {
  char path[4096];
  *history = (ch_history){.evals = json_array()};
  snprintf(path, sizeof path, "%s/metrics.jsonl", run_directory);
  int code = read_file(path, 1, take_metrics, history);
  if (!code && !history->curve[CH_LOSS].count)
    code = ch_error(CHOIR_ERROR_FORMAT, "%s: has no step yet; train first", path);
  snprintf(path, sizeof path, "%s/timing.jsonl", run_directory);
  if (!code) code = read_file(path, 0, take_timing, history);
  if (code) ch_history_free(history);
  return code;
}

void ch_history_free(ch_history *history) {
  for (int i = 0; i < CH_CURVES; i++) {
    free(history->curve[i].x);
    free(history->curve[i].y);
  }
  json_decref(history->run);
  json_decref(history->eval);
  json_decref(history->evals);
  *history = (ch_history){0};
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double ch_median(double *values, int count) {
  if (count < 1) return (double)NAN;
  qsort(values, (size_t)count, sizeof *values, by_value);
  return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

double ch_curve_median(const ch_curve *c) {
  if (!c->count) return (double)NAN;
  double *sorted = reallocarray(NULL, (size_t)c->count, sizeof *sorted);
  if (!sorted) return (double)NAN;
  memcpy(sorted, c->y, (size_t)c->count * sizeof *sorted);
  double middle = ch_median(sorted, c->count);
  free(sorted);
  return middle;
}

double ch_number_at(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return json_is_number(value) ? json_number_value(value) : (double)NAN;
}
