/* A task: the format of its files, and the template that makes a text from a row. Everything comes from a
 * description in JSON; no task has code of its own. */
#ifndef CH_TASK_TASK_H
#define CH_TASK_TASK_H

#include <jansson.h>
#include <stddef.h>

#include "choir/task.h"

enum { CH_TASK_COLUMNS = 8, CH_TASK_LABELS = 64, CH_TASK_PARTS = 2 * CH_TASK_COLUMNS + 1 };

/* The source of a value: names of a header or keys of an object, of which the first existing one is used; numbers,
 * from 1, are columns of a file without header. */
typedef json_t ch_task_source;

/* A part of the template: text, followed by a column's value. */
typedef struct ch_task_part {
  const char *text;
  size_t size;
  int column; /* -1: none, in the last part */
} ch_task_part;

struct choir_task {
  json_t *json; /* owns the strings below */
  const char *name;
  int jsonl; /* JSON lines; otherwise tab-separated values */
  int columns;
  const char *column[CH_TASK_COLUMNS]; /* column names in the template */
  const ch_task_source *source[CH_TASK_COLUMNS];
  const ch_task_source *label_source, *index_source; /* index NULL: rows are numbered */
  int labels;
  const char *word[CH_TASK_LABELS];      /* word that the model predicts for the label */
  const json_t *value[CH_TASK_LABELS];   /* spellings in files; the first is written */
  const char *label[CH_TASK_LABELS + 1]; /* first spelling; NULL after the last label */
  const json_t *unlabelled;              /* spellings of "no label"; or NULL */
  int parts;
  ch_task_part part[CH_TASK_PARTS];
  int cut; /* the column that is shortened if a text is too long; -1: none */
  int matthews, f1;
};

/* Makes a task from JSON, whose reference it takes over, or from a text in memory; every message starts with `name`
 * (of the file). */
int ch_task_make(json_t *json, const char *name, choir_task **task);
int ch_task_parse(const char *text, size_t size, const char *name, choir_task **task);

/* Label for a value of `size` bytes; -1: the value says "no label"; -2: not a label of the task. */
int ch_task_label_of(const choir_task *task, const char *value, size_t size);

/* Finds the file of a split ("train", "dev") in a directory, or in its subdirectory with the task's name: path
 * [PATH_MAX]. CHOIR_ERROR_IO lists the names that were tried. */
int ch_task_file(const choir_task *task, const char *directory, const char *split, char *path);

#endif
