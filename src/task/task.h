/* A task: how its files are laid out, and the template that makes a text of a row. Everything comes from a description
 * in JSON; no task has code of its own. */
#ifndef CH_TASK_TASK_H
#define CH_TASK_TASK_H

#include <jansson.h>
#include <stddef.h>

#include "choir/task.h"

enum { CH_TASK_COLUMNS = 8, CH_TASK_LABELS = 64, CH_TASK_PARTS = 2 * CH_TASK_COLUMNS + 1 };

/* Where a value stands: names of a header or keys of an object, the first that is there; numbers, from 1, count the
 * columns of a file without header. */
typedef json_t ch_task_source;

/* A piece of the template: text, then a column's value. */
typedef struct ch_task_part {
  const char *text;
  size_t size;
  int column; /* -1: none, at the end */
} ch_task_part;

struct choir_task {
  json_t *json; /* what the rest points into */
  const char *name;
  int jsonl; /* JSON lines; otherwise tab-separated values */
  int columns;
  const char *column[CH_TASK_COLUMNS]; /* their names in the template */
  const ch_task_source *source[CH_TASK_COLUMNS];
  const ch_task_source *label_source, *index_source; /* index NULL: rows are counted */
  int labels;
  const char *word[CH_TASK_LABELS];      /* what the model is to say */
  const json_t *value[CH_TASK_LABELS];   /* how files spell it; the first is written */
  const char *label[CH_TASK_LABELS + 1]; /* that first one; NULL after the last */
  const json_t *unlabelled;              /* spellings of "no label"; or NULL */
  int parts;
  ch_task_part part[CH_TASK_PARTS];
  int cut; /* the column that is cut where a text is too long; -1: none */
  int matthews, f1;
};

/* From JSON, whose reference it takes over; or from a text in memory; `name` (of the file) starts every message. */
int ch_task_make(json_t *json, const char *name, choir_task **task);
int ch_task_parse(const char *text, size_t size, const char *name, choir_task **task);

/* Label for a value of `size` bytes; -1: the value says "no label"; -2: not a label of the task. */
int ch_task_label_of(const choir_task *task, const char *value, size_t size);

/* Finds the file of a split ("train", "dev") in a directory, or in its folder of the task's name: path [PATH_MAX].
 * CHOIR_ERROR_IO says what was looked for. */
int ch_task_file(const choir_task *task, const char *directory, const char *split, char *path);

#endif
