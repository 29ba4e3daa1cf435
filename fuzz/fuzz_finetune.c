/* finetune.json and result.json of a fine-tuning run: any text is what the run needs to go on, or is refused; any text
 * is the result of the best evaluation, which is of step 7, or is left alone. */
#include <string.h>

#include "file/dir.h"
#include "file/run_files.h"
#include "input.h"
#include "task/task.h"
#include "task/tune.h"

static char directory[] = "/tmp/choir-fuzz-XXXXXX";

static void remove_directory(void) { ch_dir_remove(directory); }

/* The directory, in which both files are links to the input. */
static void make_directory(const char *input) {
  static const char *const names[] = {CH_RUN_TUNE, CH_RUN_RESULT};
  char path[128];
  if (!mkdtemp(directory) || atexit(remove_directory)) abort();
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/%s", directory, names[i]);
    if (symlink(input, path)) abort();
  }
}

static void check_result(ch_tune *t) {
  ch_tune_result_read(t);
  if (t->result_step < 0 || (t->run.best.result != NULL) != (t->result_step == t->run.best.step)) abort();
  free(t->run.best.result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static ch_tune tune; /* too large for a stack */
  static int made;
  const char *input = input_file(data, size);
  if (!made++) make_directory(input);
  tune = (ch_tune){.run = {.out = directory, .best = {.step = 7}}};
  if (!ch_tune_settings_load(&tune)) {
    const ch_tune_settings *s = &tune.settings;
    if (tune.task->labels < 2 || s->patience < 0 || s->batch_sequences < 0 || !*s->from || !*s->data) abort();
  }
  choir_task_free(tune.task);
  json_decref(tune.settings.task);
  check_result(&tune);
  return 0;
}
