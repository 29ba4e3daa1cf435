/* Tab-separated values of a task: columns by number and by name. */
#include "rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static choir_task *task[2];
  check_rows("CoLA", &task[0], data, size);
  check_rows("MNLI", &task[1], data, size);
  return 0;
}
