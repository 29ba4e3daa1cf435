/* state.safetensors of a checkpoint, without its checksums: any bytes are this run's state or are refused. The run is
 * made once; CHOIR_FUZZ_SEED=FILE keeps its state as a seed. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/tensors.h"
#include "choir/data.h"
#include "train/state.h"

static ch_run run;

static void must(int code) {
  if (code) fprintf(stderr, "%s\n", choir_error_message()), abort();
}

/* Data of a few words, which state files are tied to. */
static void make_data(void) {
  static char directory[] = "/tmp/choir-fuzz-XXXXXX", line[64];
  int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* libFuzzer's names are relative to it */
  if (here < 0 || !mkdtemp(directory) || chdir(directory)) abort();
  FILE *file = fopen("text", "w");
  for (int i = 0; file && i < 2000; i++) fprintf(file, "%c%c%c ", 'a' + i % 11, 'b' + i % 7, 'c' + i / 9 % 13);
  if (!file || fclose(file)) abort();
  const char *inputs[] = {"text", NULL};
  choir_tokenizer_train_options t = CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT;
  t.inputs = inputs, t.output = "model", t.vocab_size = 300, t.threads = 1;
  must(choir_tokenizer_train(&t));
  choir_data_source source = {.name = "text", .inputs = inputs};
  choir_data_build_options d = CHOIR_DATA_BUILD_OPTIONS_INIT;
  d.sources = &source, d.source_count = 1, d.tokenizer = "model", d.output = "data", d.threads = 1;
  must(choir_data_build(&d));
  must(choir_data_open("data", &run.data));
  if (fchdir(here) || close(here) || snprintf(line, sizeof line, "rm -r %s", directory) < 0 || system(line)) abort();
}

static void make_run(void) {
  choir_config *c = &run.config;
  make_data();
  choir_config_default(c);
  c->model.vocab_size = 300, c->model.layers = 2, c->model.d_model = 4, c->model.d_hidden = 4, c->model.heads = 1;
  c->model.experts = 2;
  c->train.sequence_length = 8, c->train.batch_sequences = 1;
  must(choir_config_check(c));
  choir_run_options options = CHOIR_RUN_OPTIONS_INIT;
  options.threads = 1;
  choir_model *model;
  must(ch_model_prepare(c, &options, &model));
  must(ch_trainer_plan(model, &ch_comm_single, &run.trainer));
  must(ch_trainer_commit(&run.trainer));
  if (getenv("CHOIR_FUZZ_SEED")) must(ch_state_write(&run, getenv("CHOIR_FUZZ_SEED")));
}

/* Whatever has been taken is finite. */
static void check_state(void) {
  static choir_tensor tensor[1000];
  int count = ch_optimizer_tensors(&run.trainer.optimizer, tensor);
  for (int i = 0; i < count; i++)
    for (size_t k = 0; k < tensor[i].bytes / sizeof(float); k++)
      if (!isfinite(((const float *)tensor[i].data)[k])) abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  make_run();
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  choir_tensors *file;
  void *copy = malloc(size + 1); /* aligned as a mapping is */
  if (!copy) abort();
  memcpy(copy, data, size);
  if (!ch_tensors_parse(copy, size, "input", 0, &file)) {
    if (!ch_state_read(&run, file, "input")) {
      if (run.trainer.step < 0 || run.metrics_bytes < 0) abort();
      check_state();
    }
    choir_tensors_close(file);
  }
  free(copy);
  return 0;
}
