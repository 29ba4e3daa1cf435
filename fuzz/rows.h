/* Rows of a task's file: any bytes are read or refused; what is read has all its values, well-formed. */
#ifndef CH_FUZZ_ROWS_H
#define CH_FUZZ_ROWS_H

#include <stdlib.h>

#include "base/text.h"
#include "task/set.h"

static volatile unsigned sink;

static inline void check_values(const ch_rows *rows, int64_t row, int columns) {
  for (int c = 0; c <= columns; c++) {
    ch_value v = ch_rows_value(rows, row, c);
    if (ch_utf8_valid(v.text, v.size) != v.size) abort();
    for (size_t k = 0; k < v.size; k++) sink += (unsigned char)v.text[k];
  }
}

/* For the task `name`, loaded into *task by the first call. */
static inline void check_rows(const char *name, choir_task **task, const uint8_t *data, size_t size) {
  ch_rows rows;
  if (!*task && choir_task_load(name, task)) abort();
  if (ch_rows_parse(*task, "input", (const char *)data, size, size % 2, &rows)) return;
  if (rows.count < 1 || rows.count + rows.malformed != rows.lines) abort();
  for (int64_t r = 0; r < rows.count; r++) {
    int label = ch_rows_label(&rows, r);
    if (label < -1 || label >= (*task)->labels) abort();
    check_values(&rows, r, (*task)->columns);
  }
  ch_rows_free(&rows);
}

#endif
