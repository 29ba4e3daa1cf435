#include "study/history.h"

#include <errno.h>
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
    double *xs = realloc(c->x, (size_t)room * sizeof *xs);
    if (xs) c->x = xs;
    double *ys = realloc(c->y, (size_t)room * sizeof *ys);
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

/* Hands every line of a file of JSON lines to `take`. */
static int read_lines(const char *path, int required, int (*take)(ch_history *, json_t *), ch_history *history) {
  char *text = NULL;
  size_t room = 0;
  ssize_t length;
  int code = CHOIR_OK, number = 0;
  FILE *file = fopen(path, "r");
  if (!file) return required || errno != ENOENT ? ch_error_errno("%s: cannot open", path) : CHOIR_OK;
  while (!code && (length = getline(&text, &room, file)) > 0) {
    number++;
    if (text[length - 1] != '\n') break; /* still being written */
    json_error_t error;
    json_t *line = json_loadb(text, (size_t)length, 0, &error);
    if (!json_is_object(line))
      code = ch_error(CHOIR_ERROR_FORMAT, "%s:%d: not a JSON object: %s", path, number,
                      line ? "another value" : error.text);
    else
      code = take(history, line);
    json_decref(line);
  }
  if (!code && ferror(file)) code = ch_error_errno("%s: cannot read", path);
  free(text);
  fclose(file);
  return code;
}

int ch_history_read(const char *run_directory, ch_history *history) {
  char path[4096];
  *history = (ch_history){.evals = json_array()};
  snprintf(path, sizeof path, "%s/metrics.jsonl", run_directory);
  int code = read_lines(path, 1, take_metrics, history);
  if (!code && !history->curve[CH_LOSS].count)
    code = ch_error(CHOIR_ERROR_FORMAT, "%s: has no step yet; train first", path);
  snprintf(path, sizeof path, "%s/timing.jsonl", run_directory);
  if (!code) code = read_lines(path, 0, take_timing, history);
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
