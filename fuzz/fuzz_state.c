/* state.safetensors of a checkpoint, without its checksums: any bytes are this run's state or are refused. The run is
 * made once; CHOIR_FUZZ_SEED=FILE keeps its state as a seed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/tensors.h"
#include "model/config.h"
#include "train/run.h"
#include "train/state.h"

static ch_run run;
enum { COUNTERS = 5 };
static int64_t count[COUNTERS];
static const ch_counter counters[COUNTERS] = {{"run.step", &count[0], NULL},
                                              {"run.samples", &count[1], NULL},
                                              {"run.metrics_bytes", &count[2], NULL},
                                              {"run.data_hash", &count[3], "the data"},
                                              {"run.tokenizer_hash", &count[4], "the tokenizer"}};

static void must(int code) {
  if (code) fprintf(stderr, "%s\n", choir_error_message()), abort();
}

static void make_run(void) {
  choir_config *c = &run.config;
  ch_config_default(c);
  c->model.vocab_size = 300, c->model.layers = 2, c->model.d_model = 4, c->model.d_hidden = 4, c->model.heads = 1;
  c->model.experts = 2;
  c->train.sequence_length = 8, c->train.batch_sequences = 1;
  must(choir_config_check(c));
  choir_model_options options = CHOIR_MODEL_OPTIONS_INIT;
  options.threads = 1;
  choir_model *model;
  must(ch_model_prepare(c, &options, &model));
  must(ch_trainer_plan(model, &run.trainer));
  must(ch_trainer_commit(&run.trainer));
  if (getenv("CHOIR_FUZZ_SEED")) must(ch_state_write(&run.trainer, counters, COUNTERS, getenv("CHOIR_FUZZ_SEED")));
}

/* Whatever has been taken is finite. */
static void check_state(void) {
  static ch_stored tensor[1000];
  int tensors = ch_optimizer_tensors(&run.trainer.optimizer, tensor);
  for (int i = 0; i < tensors; i++)
    for (size_t k = 0; k < tensor[i].tensor.bytes / sizeof(float); k++)
      if (!isfinite(((const float *)tensor[i].tensor.data)[k])) abort();
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
    if (!ch_state_read(&run.trainer, counters, COUNTERS, file, "input")) check_state();
    choir_tensors_free(file);
  }
  free(copy);
  return 0;
}
