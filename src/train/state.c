#include "train/state.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "base/error.h"
#include "base/file.h"
#include "model/weights.h"

/* The counters of a run, one int64 each in state.safetensors. Hashes tie a checkpoint to its data and its tokenizer. */
enum { COUNTERS = 5 };
static const char *const counter_names[COUNTERS] = {"run.step", "run.samples", "run.metrics_bytes", "run.data_hash",
                                                    "run.tokenizer_hash"};

static void get_counters(const ch_run *run, int64_t *c) {
  c[0] = run->trainer.step;
  c[1] = (int64_t)run->position.samples;
  c[2] = run->metrics_bytes;
  c[3] = (int64_t)ch_data_hash(run->data);
  c[4] = (int64_t)ch_data_tokenizer_hash(run->data);
}

static int save_state(const ch_run *run, const char *path) {
  int64_t counters[COUNTERS];
  get_counters(run, counters);
  choir_tensor *tensor =
      calloc((size_t)(CH_OPTIM_STATES * run->trainer.model->net.params.count + COUNTERS), sizeof *tensor);
  if (!tensor) return ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for the list of tensors", path);
  int count = ch_optimizer_tensors(&run->trainer.optimizer, tensor);
  for (int i = 0; i < COUNTERS; i++) {
    choir_tensor *t = &tensor[count++];
    *t = (choir_tensor){.dtype = CHOIR_I64, .dims = 0, .data = &counters[i], .bytes = sizeof counters[i]};
    snprintf(t->name, sizeof t->name, "%s", counter_names[i]);
  }
  int code = ch_tensors_save(run->trainer.model->x.memory, path, tensor, count);
  free(tensor);
  return code;
}

/* Whole checkpoints beyond the newest `keep` go; a directory that cannot be removed is left for the next time. */
static void rotate(const ch_run *run) {
  char path[PATH_MAX];
  int keep = run->config.train.keep_checkpoints;
  snprintf(path, sizeof path, "%s/checkpoints", run->out);
  for (;;) {
    int64_t oldest = INT64_MAX;
    int count = 0;
    DIR *d = opendir(path);
    if (!d) return;
    for (struct dirent *entry; (entry = readdir(d));) {
      int64_t step = ch_checkpoint_step(entry->d_name);
      if (step < 0) continue;
      count++;
      if (step < oldest) oldest = step;
    }
    closedir(d);
    if (keep <= 0 || count <= keep) return;
    char old[PATH_MAX];
    ch_checkpoint_path(run->out, oldest, old);
    if (ch_dir_remove(old)) return;
  }
}

int ch_checkpoint_save(ch_run *run, char *path) {
  ch_dir directory;
  char file[PATH_MAX + 32];
  ch_checkpoint_path(run->out, run->trainer.step, path);
  CH_TRY(ch_dir_begin(&directory, path));
  int code = ch_model_save_into(run->trainer.model, run->tokenizer, directory.temporary);
  if (!code) {
    snprintf(file, sizeof file, "%s/state.safetensors", directory.temporary);
    code = save_state(run, file);
  }
  if (code) {
    ch_dir_abandon(&directory);
    return ch_error_in(code, "checkpoint of step %" PRId64 " not saved; earlier ones are intact", run->trainer.step);
  }
  CH_TRY(ch_dir_commit(&directory));
  rotate(run);
  return CHOIR_OK;
}

static int read_counters(ch_run *run, const choir_tensors *file, const char *path) {
  int64_t c[COUNTERS], now[COUNTERS];
  for (int i = 0; i < COUNTERS; i++) {
    const choir_tensor *t = choir_tensors_find(file, counter_names[i]);
    if (!t || t->dtype != CHOIR_I64 || t->bytes != sizeof c[i])
      return ch_error(CHOIR_ERROR_FORMAT, "%s: '%s' is missing or not one I64", path, counter_names[i]);
    memcpy(&c[i], t->data, sizeof c[i]);
  }
  for (int i = 0; i < 3; i++)
    if (c[i] < 0) return ch_error(CHOIR_ERROR_FORMAT, "%s: '%s' is %" PRId64, path, counter_names[i], c[i]);
  get_counters(run, now);
  if (c[4] != now[4])
    return ch_error(CHOIR_ERROR_FORMAT,
                    "%s: the run's tokenizer is not that of the data; resume with the run's own data", path);
  if (c[3] != now[3])
    return ch_error(CHOIR_ERROR_FORMAT,
                    "%s: the data has changed since this checkpoint; resume with the run's own data", path);
  run->trainer.step = c[0];
  run->position.samples = (uint64_t)c[1];
  run->metrics_bytes = c[2];
  return CHOIR_OK;
}

static int load_state(ch_run *run, const choir_tensors *file, const char *path) {
  const ch_memory *memory = run->trainer.model->x.memory;
  CH_TRY(read_counters(run, file, path));
  choir_tensor *want = calloc((size_t)(CH_OPTIM_STATES * run->trainer.model->net.params.count), sizeof *want);
  if (!want) return ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for the list of tensors", path);
  int count = ch_optimizer_tensors(&run->trainer.optimizer, want), code = CHOIR_OK;
  for (int i = 0; i < count && !code; i++)
    code = ch_tensor_read(file, path, want[i].name, want[i].dims, want[i].shape, memory, CH_AS_DEV(real, want[i].data));
  free(want);
  if (!code && choir_tensors_count(file) != count + COUNTERS)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %d tensors, the run's optimizer has %d", path, choir_tensors_count(file),
                    count + COUNTERS);
  return code;
}

int ch_checkpoint_load(ch_run *run, const char *path) {
  char file[PATH_MAX + 32];
  choir_tensors *tensors;
  snprintf(file, sizeof file, "%s/model.safetensors", path);
  CH_TRY(ch_weights_load(&run->trainer.model->net.params, run->trainer.model->x.memory, file));
  ch_model_weights_changed(run->trainer.model);
  snprintf(file, sizeof file, "%s/state.safetensors", path);
  CH_TRY(choir_tensors_open(file, 1, &tensors));
  int code = load_state(run, tensors, file);
  choir_tensors_close(tensors);
  return code;
}
