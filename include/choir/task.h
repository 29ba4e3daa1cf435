/* Tasks: labelled sets of texts, in files as GLUE and SuperGLUE lay them out, as text to text. */
#ifndef CHOIR_TASK_H
#define CHOIR_TASK_H

#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* Describes a task's files and how a row becomes a text; docs/finetuning.md has the JSON. */
typedef struct choir_task choir_task;

/* The names of the tasks that the library knows by itself, NULL-terminated. */
CHOIR_API const char *const *choir_task_names(void);

/* Loads a task by its name, or the description in a JSON file: what holds a '/' or ends in ".json" is a file.
 * CHOIR_ERROR_ARGUMENT: no such name (with the nearest one); CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT (file, key, value). */
CHOIR_API int choir_task_load(const char *name, choir_task **task);
CHOIR_API void choir_task_free(choir_task *task);

CHOIR_API const char *choir_task_name(const choir_task *task);
CHOIR_API const char *const *choir_task_labels(const choir_task *task); /* as files spell them; NULL-terminated */

/* How good predictions are, over the rows that have a label. NaN: not defined, or not asked of the task. */
typedef struct choir_task_measure {
  const char *routing; /* that gave the predictions */
  int64_t labelled, correct;
  double accuracy;
  double matthews, f1; /* of two labels, the second being the positive one */
  int64_t reserved[8];
} choir_task_measure;

CHOIR_C_END
#endif
