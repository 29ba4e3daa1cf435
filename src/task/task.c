#include "task/task.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/embedded.h"
#include "base/error.h"
#include "base/text.h"
#include "file/json.h"

/* Takes over the reference. */
static int make_task(json_t *json, const char *name, choir_task **task) {
  *task = calloc(1, sizeof **task);
  if (!*task) {
    json_decref(json);
    return ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for a task", name);
  }
  (*task)->json = json;
  int code = ch_task_describe(*task, name);
  if (!code) return CHOIR_OK;
  choir_task_free(*task);
  *task = NULL;
  return code;
}

int ch_task_parse(const char *text, size_t size, const char *name, choir_task **task) {
  json_t *json;
  *task = NULL;
  CH_TRY(ch_json_parse(text, size, name, &json));
  return make_task(json, name, task);
}

const char *const *choir_task_names(void) {
  enum { MOST = 255 };
  static const char *names[MOST + 1]; /* the same whoever fills it */
  for (int i = 0; i < MOST && ch_tasks[i].name; i++) names[i] = ch_tasks[i].name;
  return names;
}

int choir_task_load(const char *name, choir_task **task) {
  CH_TRY(CH_GIVEN(name, task));
  size_t length = strlen(name);
  json_t *json;
  char suggestion[100];
  *task = NULL;
  if (strchr(name, '/') || (length > 5 && !strcmp(name + length - 5, ".json"))) {
    CH_TRY(ch_json_load(name, &json));
    return make_task(json, name, task);
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
int choir_task_labels(const choir_task *task) { return task ? task->labels : 0; }
const char *choir_task_label(const choir_task *task, int label) {
  return task && label >= 0 && label < task->labels ? json_string_value(json_array_get(task->value[label], 0)) : NULL;
}

int ch_task_file(const choir_task *task, const char *directory, const char *split, char *path) {
  json_t *splits = json_object_get(task->json, "splits"), *files = json_object_get(splits, split), *file;
  size_t i, used = 0;
  char looked[512] = "";
  const char *known;
  if (!files) {
    json_object_foreach(splits, known, file) if (used < sizeof looked) used +=
        (size_t)snprintf(looked + used, sizeof looked - used, "%s%s", used ? ", " : "", known);
    return ch_error(CHOIR_ERROR_ARGUMENT, "task %s has no split '%.80s'; it has %s", task->name, split, looked);
  }
  json_array_foreach(files, i, file) {
    for (int inside = 0; inside < 2; inside++) {
      snprintf(path, PATH_MAX, "%s/%s%s%s", directory, inside ? task->name : "", inside ? "/" : "",
               json_string_value(file));
      if (!access(path, F_OK)) return CHOIR_OK;
    }
    if (used < sizeof looked)
      used += (size_t)snprintf(looked + used, sizeof looked - used, "%s%s", i ? ", " : "", json_string_value(file));
  }
  return ch_error(CHOIR_ERROR_IO, "%s: no file of split '%s' of task %s, there or in %s/: looked for %s", directory,
                  split, task->name, task->name, looked);
}
