/* Descriptions of tasks: any text is a task that can be used, or refused. */
#include <stdlib.h>
#include <string.h>

#include "task/task.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  choir_task *task;
  char path[4096];
  if (ch_task_parse((const char *)data, size, "input", &task)) return 0;
  if (task->labels < 2 || task->columns < 1 || task->parts < 2) abort();
  for (int l = 0; l < task->labels; l++)
    if (ch_task_label_of(task, task->label[l], strlen(task->label[l])) != l) abort();
  if (!ch_task_file(task, "/nonexistent", "train", path)) abort();
  choir_task_free(task);
  return 0;
}
