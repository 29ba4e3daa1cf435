/* The rows of a task's file: values by the template's columns, and labels. Two layouts, one table. */
#ifndef CH_TASK_ROWS_H
#define CH_TASK_ROWS_H

#include "base/buffer.h"
#include "base/text.h"
#include "task/task.h"

typedef struct ch_span {
  size_t at, size;
} ch_span;

typedef struct ch_rows {
  const choir_task *task;
  const char *name;  /* of the file, for messages; of the one who parses */
  int64_t count;     /* rows that are good */
  int64_t lines;     /* rows of the file */
  int64_t malformed; /* ... of these that were left out, */
  char first[400];   /* and what was wrong with the first one */
  ch_buffer text;    /* all values */
  ch_buffer spans;   /* of ch_span: [count, columns + 1], the last one being the row's index in the file's own words */
  ch_buffer labels;  /* of int: [count]; -1: none */
} ch_rows;

void ch_rows_free(ch_rows *rows);

ch_value ch_rows_value(const ch_rows *rows, int64_t row, int column); /* column == task->columns: the index */
int ch_rows_label(const ch_rows *rows, int64_t row);

/* For the readers of the two layouts (tsv.c, jsonl.c): go through all lines of a text. */
int ch_tsv_rows(ch_rows *rows, const char *text, size_t size, int labelled);
int ch_jsonl_rows(ch_rows *rows, const char *text, size_t size, int labelled);

/* A good row: values [columns + 1], spaces around them dropped; an index without text becomes the row's number. */
int ch_rows_add(ch_rows *rows, const ch_value *values, int label);

/* A malformed one. CHOIR_OK: the rest is read. */
int ch_rows_leave_out(ch_rows *rows, int64_t line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The row's label from what the file says, NULL text: nothing. Nonzero: the row is malformed, and was counted. */
int ch_rows_label_of(ch_rows *rows, int64_t line, const ch_value *value, int labelled, int *label);

/* Whether a header or key is a source's text: as the description has it, or (not `exactly`) with other capitals and
 * spaces around it, as spreadsheets write headers. */
int ch_source_is(ch_value field, const json_t *text, int exactly);

/* "a or b": the texts of a source, for messages. */
const char *ch_source_text(const ch_task_source *source, char *text, size_t size);

#endif
