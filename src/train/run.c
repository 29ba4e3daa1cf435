/* A run's own part of its checkpoints: its counters, and the hashes that tie them to its data and tokenizer. */
#include "train/run.h"

#include "train/state.h"

enum { STEP, SAMPLES, METRICS, DATA, TOKENIZER, COUNTERS };
_Static_assert((int)COUNTERS <= (int)CH_COUNTERS, "state.h has room for them");

static void get_counters(const ch_run *run, ch_counter *c) {
  c[STEP] = (ch_counter){"run.step", run->trainer.step, NULL};
  c[SAMPLES] = (ch_counter){"run.samples", (int64_t)run->position.samples, NULL};
  c[METRICS] = (ch_counter){"run.metrics_bytes", run->metrics_bytes, NULL};
  c[DATA] = (ch_counter){"run.data_hash", (int64_t)ch_data_hash(run->data), "the data"};
  c[TOKENIZER] = (ch_counter){"run.tokenizer_hash", (int64_t)ch_data_tokenizer_hash(run->data), "the data's tokenizer"};
}

int ch_checkpoint_save(ch_run *run, char *path) {
  ch_counter c[COUNTERS];
  get_counters(run, c);
  return ch_state_save(run->out, &run->trainer, run->tokenizer, c, COUNTERS, -1, path);
}

int ch_checkpoint_load(ch_run *run, const char *path) {
  ch_counter c[COUNTERS];
  get_counters(run, c);
  CH_TRY(ch_state_load(path, &run->trainer, c, COUNTERS));
  run->trainer.step = c[STEP].value;
  run->position.samples = (uint64_t)c[SAMPLES].value;
  run->metrics_bytes = c[METRICS].value;
  return CHOIR_OK;
}
