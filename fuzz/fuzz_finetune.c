/* finetune.json: any text is what a fine-tuning run needs to go on, or is refused. */
#include <string.h>

#include "file/dir.h"
#include "input.h"
#include "task/task.h"
#include "task/tune.h"

static char directory[] = "/tmp/choir-fuzz-XXXXXX";

static void remove_directory(void) { ch_dir_remove(directory); }

/* The directory, in which finetune.json is a link to the input. */
static void make_directory(const char *input) {
  char path[128];
  if (!mkdtemp(directory) || atexit(remove_directory)) abort();
  snprintf(path, sizeof path, "%s/finetune.json", directory);
  if (symlink(input, path)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static ch_tune tune; /* too large for a stack */
  static int made;
  const char *input = input_file(data, size);
  if (!made++) make_directory(input);
  tune = (ch_tune){.run = {.out = directory}};
  if (!ch_tune_settings_load(&tune)) {
    const ch_tune_settings *s = &tune.settings;
    if (tune.task->labels < 2 || s->patience < 0 || s->batch_sequences < 0 || !*s->from || !*s->data) abort();
  }
  choir_task_free(tune.task);
  json_decref(tune.settings.task);
  return 0;
}
