/* The rows of a task's file: values of the template's columns, and labels. Two file formats, one table. */
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
  const char *name;  /* file name in messages; owned by the caller */
  int64_t count;     /* well-formed rows */
  int64_t lines;     /* rows of the file */
  int64_t malformed; /* number of malformed lines, which were skipped */
  char first[400];   /* error of the first malformed line */
  ch_buffer text;    /* concatenated values */
  ch_buffer spans;   /* ch_span [count, columns + 1]; the last column is the row's index as the file has it */
  ch_buffer labels;  /* int [count]; -1: no label */
} ch_rows;

void ch_rows_free(ch_rows *rows);

ch_value ch_rows_value(const ch_rows *rows, int64_t row, int column); /* column == task->columns: the index */
int ch_rows_label(const ch_rows *rows, int64_t row);

/* The readers of the two formats (tsv.c, jsonl.c): read all lines of a text. */
int ch_tsv_rows(ch_rows *rows, const char *text, size_t size, int labelled);
int ch_jsonl_rows(ch_rows *rows, const char *text, size_t size, int labelled);

/* Adds a well-formed row: values [columns + 1], without surrounding spaces; an empty index becomes the row's number. */
int ch_rows_add(ch_rows *rows, const ch_value *values, int label);

/* Counts a malformed row. CHOIR_OK: reading continues. */
int ch_rows_leave_out(ch_rows *rows, int64_t line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The row's label from the file's value (NULL text: none). Nonzero: the row is malformed, and was counted. */
int ch_rows_label_of(ch_rows *rows, int64_t line, const ch_value *value, int labelled, int *label);

/* Whether a header or key is one of a source's names: as the description spells it, or (not `exactly`) ignoring case
 * and surrounding spaces, since spreadsheets change them. */
int ch_source_is(ch_value field, const json_t *text, int exactly);

/* "a or b": the names of a source, for messages. */
const char *ch_source_text(const ch_task_source *source, char *text, size_t size);

#endif
