/* Tasks: labelled data in the file layout of GLUE and SuperGLUE, converted to text-to-text examples. */
#ifndef CHOIR_TASK_H
#define CHOIR_TASK_H

#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* Description of a task: its files, and the template that converts a row to a text; docs/finetuning.md has the JSON. */
typedef struct choir_task choir_task;

/* The names of the built-in tasks, NULL-terminated. */
CHOIR_API const char *const *choir_task_names(void);

/* Loads a built-in task, or a description from a JSON file: a name with a '/' or ending in ".json" is a file.
 * CHOIR_ERROR_ARGUMENT: no such name (with the nearest one); CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT (file, key, value). */
CHOIR_API int choir_task_load(const char *name, choir_task **task);
CHOIR_API void choir_task_free(choir_task *task);

CHOIR_API const char *choir_task_name(const choir_task *task);
CHOIR_API const char *const *choir_task_labels(const choir_task *task); /* as spelled in the files; NULL-terminated */

/* Metrics of predictions, over the rows with a label. NaN: not defined, or not a metric of the task. */
typedef struct choir_task_measure {
  const char *routing; /* the routing of the predictions */
  int64_t labelled, correct;
  double accuracy;
  double matthews, f1; /* for two labels; the second one is positive */
  int64_t reserved[8];
} choir_task_measure;

CHOIR_C_END
#endif
