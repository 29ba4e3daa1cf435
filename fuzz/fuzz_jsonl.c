/* JSON lines of a task. */
#include "rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static choir_task *task[2];
  check_rows("BoolQ", &task[0], data, size);
  check_rows("WiC", &task[1], data, size);
  return 0;
}
