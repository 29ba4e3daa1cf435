#include "task/task.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/embedded.h"
#include "base/enter.h"
#include "base/text.h"
#include "file/json.h"
#include "file/path_status.h"

/* ---- reading a description: every error names the file, the key and the value ---- */

static int among(const json_t *values, const char *text, size_t size) {
  size_t i;
  const json_t *value;
  json_array_foreach(values, i, value) {
    if (json_string_length(value) == size && !memcmp(json_string_value(value), text, size)) return 1;
  }
  return 0;
}

static int label_spelt(const choir_task *task, const char *value, size_t size) {
  if (task->unlabelled && among(task->unlabelled, value, size)) return -1;
  for (int label = 0; label < task->labels; label++)
    if (among(task->value[label], value, size)) return label;
  return size == 2 && !memcmp(value, "-1", 2) ? -1 : -2; /* Hugging Face's datasets write -1 for "no label" */
}

/* An integer as pandas writes a column with missing values: "1.0". Returns the size of "1"; 0: not an integer. */
static size_t whole_number(const char *value, size_t size) {
  size_t sign = size && *value == '-', digits = 0, zeros = 0;
  while (sign + digits < size && value[sign + digits] >= '0' && value[sign + digits] <= '9') digits++;
  if (!digits || sign + digits == size || value[sign + digits] != '.') return 0;
  for (size_t at = sign + digits + 1; at < size && value[at] == '0'; at++) zeros++;
  return zeros && sign + digits + 1 + zeros == size ? sign + digits : 0;
}

int ch_task_label_of(const choir_task *task, const char *value, size_t size) {
  int label = label_spelt(task, value, size);
  if (label == -2 && whole_number(value, size)) label = label_spelt(task, value, whole_number(value, size));
  if (label == -2 && size == 4 && !strncasecmp(value, "true", 4))
    label = label_spelt(task, "true", 4); /* Python's spelling */
  if (label == -2 && size == 5 && !strncasecmp(value, "false", 5)) label = label_spelt(task, "false", 5);
  return label;
}

/* Checks a list of at least `min` strings, and of numbers too if `numbers` is set. */
static int check_list(const json_t *list, const char *name, const char *key, size_t min, int numbers) {
  size_t i;
  json_t *item;
  char text[80];
  if (!json_is_array(list) || json_array_size(list) < min)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"%s\" must be an array of %zu or more", name, key, min);
  json_array_foreach(list, i, item) {
    int number = numbers && json_is_integer(item) && json_integer_value(item) >= 1 && json_integer_value(item) <= 4096;
    if (!number && !(json_is_string(item) && json_string_length(item)))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: \"%s\" has %s in it: %s", name, key,
                      ch_json_show(item, text, sizeof text),
                      numbers ? "must be names, or numbers of columns from 1" : "must be texts");
  }
  return CHOIR_OK;
}

static int read_format(choir_task *t, const char *name) {
  const char *format;
  CH_TRY(ch_json_get_string(t->json, name, "format", &format));
  t->jsonl = !strcmp(format, "jsonl");
  if (t->jsonl || !strcmp(format, "tsv")) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: \"format\" is \"%.40s\": must be \"tsv\" or \"jsonl\"", name, format);
}

static int read_splits(const choir_task *t, const char *name) {
  json_t *splits, *files;
  const char *key;
  CH_TRY(ch_json_get_object(t->json, name, "splits", &splits));
  json_object_foreach(splits, key, files) CH_TRY(check_list(files, name, key, 1, 0));
  return CHOIR_OK;
}

static int read_columns(choir_task *t, const char *name) {
  json_t *columns, *source;
  const char *key;
  CH_TRY(ch_json_get_object(t->json, name, "columns", &columns));
  if (!json_object_size(columns) || json_object_size(columns) > CH_TASK_COLUMNS)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"columns\" has %zu entries: must have 1 to %d", name,
                    json_object_size(columns), CH_TASK_COLUMNS);
  json_object_foreach(columns, key, source) {
    CH_TRY(check_list(source, name, key, 1, !t->jsonl));
    t->column[t->columns] = key;
    t->source[t->columns++] = source;
  }
  t->label_source = json_object_get(t->json, "label");
  t->index_source = json_object_get(t->json, "index");
  t->unlabelled = json_object_get(t->json, "unlabelled");
  CH_TRY(check_list(t->label_source, name, "label", 1, !t->jsonl));
  if (t->index_source) CH_TRY(check_list(t->index_source, name, "index", 1, !t->jsonl));
  return t->unlabelled ? check_list(t->unlabelled, name, "unlabelled", 1, 0) : CHOIR_OK;
}

/* No two labels may share a spelling or a word. */
static int check_label(const choir_task *t, int label, const char *name) {
  size_t i;
  const json_t *value;
  for (int other = 0; other < label; other++)
    if (!strcmp(t->word[other], t->word[label]))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: two labels have the word \"%.40s\"", name, t->word[label]);
  json_array_foreach(t->value[label], i, value) {
    int owner = ch_task_label_of(t, json_string_value(value), json_string_length(value));
    if (owner != label)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: the value \"%.40s\" stands for more than one label", name,
                      json_string_value(value));
  }
  return CHOIR_OK;
}

static int read_labels(choir_task *t, const char *name) {
  json_t *labels, *label;
  size_t i;
  CH_TRY(ch_json_get_array(t->json, name, "labels", &labels));
  if (json_array_size(labels) < 2 || json_array_size(labels) > CH_TASK_LABELS)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"labels\" has %zu entries: must have 2 to %d", name,
                    json_array_size(labels), CH_TASK_LABELS);
  json_array_foreach(labels, i, label) {
    if (!json_is_object(label))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: an entry of \"labels\" is no object {\"word\", \"values\"}", name);
    CH_TRY(ch_json_get_string(label, name, "word", &t->word[i]));
    if (!*t->word[i]) return ch_error(CHOIR_ERROR_FORMAT, "%s: a \"word\" of a label is empty", name);
    t->value[i] = json_object_get(label, "values");
    CH_TRY(check_list(t->value[i], name, "values", 1, 0));
    t->label[t->labels++] = json_string_value(json_array_get(t->value[i], 0));
    CH_TRY(check_label(t, (int)i, name));
  }
  return CHOIR_OK;
}

static int column_of(const choir_task *t, const char *text, size_t size) {
  for (int c = 0; c < t->columns; c++)
    if (strlen(t->column[c]) == size && !strncmp(t->column[c], text, size)) return c;
  return -1;
}

/* Parses "{a} and {b}" into text parts, each followed by a column. */
static int read_template(choir_task *t, const char *name) {
  const char *text, *cut = json_string_value(json_object_get(t->json, "cut"));
  CH_TRY(ch_json_get_string(t->json, name, "template", &text));
  for (const char *at = text; at; t->parts++) {
    const char *open = strchr(at, '{'), *close = open ? strchr(open, '}') : NULL;
    if (t->parts == CH_TASK_PARTS)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: \"template\" names columns more than %d times", name, CH_TASK_PARTS - 1);
    t->part[t->parts] = (ch_task_part){.text = at, .size = open ? (size_t)(open - at) : strlen(at), .column = -1};
    if (open && (!close || (t->part[t->parts].column = column_of(t, open + 1, (size_t)(close - open - 1))) < 0))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: \"template\" has \"%.40s\": a '{' begins the name of one of \"columns\"",
                      name, open);
    at = close ? close + 1 : NULL;
  }
  if (t->parts < 2)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"template\" names no column, as {%s}", name, t->column[0]);
  t->cut = cut ? column_of(t, cut, strlen(cut)) : -1;
  if (json_object_get(t->json, "cut") && t->cut < 0)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"cut\" must name one of \"columns\"", name);
  return CHOIR_OK;
}

static int read_metrics(choir_task *t, const char *name) {
  json_t *metrics = json_object_get(t->json, "metrics"), *metric;
  size_t i;
  if (metrics) CH_TRY(check_list(metrics, name, "metrics", 0, 0));
  json_array_foreach(metrics, i, metric) {
    const char *word = json_string_value(metric);
    int matthews = !strcmp(word, "matthews"), f1 = !strcmp(word, "f1");
    t->matthews |= matthews;
    t->f1 |= f1;
    if (!matthews && !f1 && strcmp(word, "accuracy"))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: \"metrics\" has \"%.40s\": knows accuracy, matthews, f1", name, word);
  }
  if ((t->matthews || t->f1) && t->labels != 2)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"metrics\": matthews and f1 are for two labels, not %d", name, t->labels);
  return CHOIR_OK;
}

static int read_description(choir_task *t, const char *name) {
  static const char *const known[] = {"name",   "format",     "splits",   "columns", "label",   "index",
                                      "labels", "unlabelled", "template", "cut",     "metrics", NULL};
  CH_TRY(ch_json_check_keys(t->json, name, known));
  CH_TRY(ch_json_get_string(t->json, name, "name", &t->name));
  if (!*t->name || strchr(t->name, '/'))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"name\" is \"%.40s\": must be a word without '/'", name, t->name);
  CH_TRY(read_format(t, name));
  CH_TRY(read_splits(t, name));
  CH_TRY(read_columns(t, name));
  CH_TRY(read_labels(t, name));
  CH_TRY(read_template(t, name));
  return read_metrics(t, name);
}

/* ---- handles ---- */

int ch_task_make(json_t *json, const char *name, choir_task **task) {
  int code = CH_ALLOC(task, 1, "task %s", name);
  if (code) return json_decref(json), code;
  (*task)->json = json;
  code = read_description(*task, name);
  if (!code) return CHOIR_OK;
  choir_task_free(*task);
  *task = NULL;
  return code;
}

int ch_task_parse(const char *text, size_t size, const char *name, choir_task **task) {
  json_t *json;
  *task = NULL;
  CH_TRY(ch_json_parse(text, size, name, &json));
  return ch_task_make(json, name, task);
}

const char *const *choir_task_names(void) {
  enum { MAX = 255 };
  static const char *names[MAX + 1]; /* the same content on every thread that fills it */
  for (int i = 0; i < MAX && ch_tasks[i].name; i++) names[i] = ch_tasks[i].name;
  return names;
}

int choir_task_load(const char *name, choir_task **task) {
  CH_ENTER(name, task);
  size_t length = strlen(name);
  json_t *json;
  char suggestion[100];
  *task = NULL;
  if (strchr(name, '/') || (length > 5 && !strcmp(name + length - 5, ".json"))) {
    CH_TRY(ch_json_load(name, &json));
    return ch_task_make(json, name, task);
  }
  for (const ch_embedded *b = ch_tasks; b->name; b++)
    if (!strcmp(b->name, name)) return ch_task_parse(b->text, strlen(b->text), name, task);
  return ch_error(CHOIR_ERROR_ARGUMENT, "unknown task '%.80s'%s; a description of your own is named by its file", name,
                  ch_did_you_mean(suggestion, sizeof suggestion, name, choir_task_names()));
}

void choir_task_free(choir_task *task) {
  if (!task) return;
  json_decref(task->json);
  free(task);
}

const char *choir_task_name(const choir_task *task) { return task ? task->name : NULL; }
const char *const *choir_task_labels(const choir_task *task) { return task ? task->label : NULL; }

int ch_task_file(const choir_task *task, const char *directory, const char *split, char *path) {
  json_t *splits = json_object_get(task->json, "splits"), *files = json_object_get(splits, split), *file;
  size_t i, used = 0;
  char looked[512] = "";
  const char *known;
  int there;
  if (!files) {
    json_object_foreach(splits, known, file) if (used < sizeof looked) used +=
        (size_t)snprintf(looked + used, sizeof looked - used, "%s%s", used ? ", " : "", known);
    return ch_error(CHOIR_ERROR_ARGUMENT, "task %s has no split '%.80s'; it has %s", task->name, split, looked);
  }
  json_array_foreach(files, i, file) {
    for (int inside = 0; inside < 2; inside++) {
      snprintf(path, PATH_MAX, "%s/%s%s%s", directory, inside ? task->name : "", inside ? "/" : "",
               json_string_value(file));
      CH_TRY(ch_path_exists(path, &there));
      if (there) return CHOIR_OK;
    }
    if (used < sizeof looked)
      used += (size_t)snprintf(looked + used, sizeof looked - used, "%s%s", i ? ", " : "", json_string_value(file));
  }
  return ch_error(CHOIR_ERROR_IO, "%s: no file of split '%s' of task %s, there or in %s/: looked for %s", directory,
                  split, task->name, task->name, looked);
}
