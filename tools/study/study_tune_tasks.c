/* The labelled tasks of a study, as they lie in their directory. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "file/file.h"
#include "file/json.h"
#include "study/study.h"
#include "task/task.h"

/* A file's bytes into the hash; its size and its lines. */
static int look_at(const char *path, uint64_t *hash, double *bytes, int64_t *lines) {
  const void *data;
  size_t size;
  CH_TRY(ch_file_map(path, &data, &size));
  *hash = XXH64(data, size, *hash);
  *bytes = (double)size;
  *lines = 1;
  for (const char *at = data, *end = at + size; at < end && (at = memchr(at, '\n', (size_t)(end - at))); at++) ++*lines;
  ch_file_unmap(data, size);
  return CHOIR_OK;
}

static int describe(const choir_task *task, const char *train, const char *dev, ch_study_task *out) {
  char *text = ch_json_dump(task->json, JSON_COMPACT | JSON_SORT_KEYS);
  double bytes;
  int64_t lines;
  if (!text) return ch_error(CHOIR_ERROR_MEMORY, "no memory for task %s", task->name);
  out->hash = XXH64(text, strlen(text), 0);
  free(text);
  CH_TRY(look_at(dev, &out->hash, &bytes, &out->dev_rows));
  CH_TRY(look_at(train, &out->hash, &bytes, &lines));
  out->text_bytes = bytes / (double)lines;
  return CHOIR_OK;
}

/* One task, if its files are there. */
static int add_task(ch_study_tune *t, const char *given) {
  char train[PATH_MAX], dev[PATH_MAX];
  choir_task *task;
  CH_TRY(choir_task_load(given, &task));
  ch_study_task *new = &t->task[t->tasks];
  int code = CHOIR_OK;
  snprintf(new->name, sizeof new->name, "%s", task->name);
  for (int i = 0; i < t->tasks && !code; i++)
    if (!strcmp(t->task[i].name, new->name))
      code = ch_error(CHOIR_ERROR_FORMAT, "tune: two tasks are called '%s'", new->name);
  if (!code && (strchr(given, '/') || strstr(given, ".json"))) {
    if (!realpath(given, new->given)) code = ch_error_errno("%s: cannot open", given);
  } else {
    snprintf(new->given, sizeof new->given, "%s", given);
  }
  int missing =
      !code && (ch_task_file(task, t->directory, "train", train) || ch_task_file(task, t->directory, "dev", dev));
  if (missing) ch_json_add(t->missing, json_string(new->name));
  if (!missing && !code) code = describe(task, train, dev, new);
  if (!missing && !code) t->tasks++;
  choir_task_free(task);
  return code;
}

static int take_words(const char *text, size_t length, const char *where, json_t *words) {
  json_t *line;
  const char *task;
  double accuracy;
  CH_TRY(ch_json_parse(text, length, where, &line));
  int code = ch_json_get_string(line, where, "task", &task);
  if (!code) code = ch_json_get_number(line, where, "accuracy", 0, 1, &accuracy);
  if (!code) ch_json_put(words, task, json_real(accuracy));
  json_decref(line);
  return code;
}

int ch_study_words_read(const char *path, json_t *words) {
  char *text, where[PATH_MAX];
  size_t size;
  int code = CHOIR_OK, row = 1;
  CH_TRY(ch_file_read(path, 1 << 20, &text, &size));
  for (const char *at = text, *end = text + size, *stop; at < end && !code; at = stop + 1, row++) {
    stop = memchr(at, '\n', (size_t)(end - at));
    if (!stop) stop = end;
    snprintf(where, sizeof where, "%.3000s, row %d", path, row);
    if (stop > at) code = take_words(at, (size_t)(stop - at), where, words);
  }
  free(text);
  return code;
}

int ch_study_tune_set_up(ch_study *s, const choir_study_options *o) {
  ch_study_tune *t = &s->tune;
  const json_t *tune = json_object_get(s->recipe, "tune"), *names = json_object_get(tune, "tasks"), *name;
  size_t i;
  if (!tune && (o->tasks || o->words || o->tune_steps || o->tune_rows))
    return ch_error(CHOIR_ERROR_ARGUMENT, "recipe %s fine-tunes nothing: leave out what is about tasks", s->name);
  if (!tune) return CHOIR_OK;
  if (!o->tasks)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "recipe %s fine-tunes on labelled tasks: give --tasks DIR, with a folder for each task "
                    "(docs/finetuning.md)",
                    s->name);
  if (!realpath(o->tasks, t->directory)) return ch_error_errno("%s: cannot open the tasks", o->tasks);
  t->task = calloc(json_array_size(names), sizeof *t->task);
  t->missing = json_array();
  t->words = json_object();
  if (!t->task || !t->missing || !t->words) return ch_error(CHOIR_ERROR_MEMORY, "no memory for the tasks");
  json_array_foreach(names, i, name) {
    int code = add_task(t, json_string_value(name));
    if (code) return ch_error_in(code, "recipe %s", s->name);
  }
  if (!t->tasks)
    return ch_error(CHOIR_ERROR_IO, "%s: holds none of the recipe's tasks, no folder %s with its files", o->tasks,
                    json_string_value(json_array_get(t->missing, 0)));
  return o->words ? ch_study_words_read(o->words, t->words) : CHOIR_OK;
}
