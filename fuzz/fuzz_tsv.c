/* Tab-separated values of a task: any bytes are read or refused; what is read has all its values, well-formed. */
#include <stdlib.h>

#include "data/utf8.h"
#include "task/rows.h"

static volatile unsigned sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static choir_task *task[2];
  static const char *const name[] = {"CoLA", "MNLI"}; /* columns by number and by name */
  for (int i = 0; i < 2; i++) {
    ch_rows rows;
    if (!task[i] && choir_task_load(name[i], &task[i])) abort();
    if (ch_rows_parse(task[i], "input", (const char *)data, size, size % 2, &rows)) continue;
    if (rows.count < 1 || rows.count + rows.malformed != rows.lines) abort();
    for (int64_t r = 0; r < rows.count; r++) {
      int label = ch_rows_label(&rows, r);
      if (label < -1 || label >= choir_task_labels(task[i])) abort();
      for (int c = 0; c <= task[i]->columns; c++) {
        ch_value v = ch_rows_value(&rows, r, c);
        if (ch_utf8_valid(v.text, v.size) != v.size) abort();
        for (size_t k = 0; k < v.size; k++) sink += (unsigned char)v.text[k];
      }
    }
    ch_rows_free(&rows);
  }
  return 0;
}
