#include "train/state.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

int ch_state_write(const ch_run *run, const char *path) {
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

/* A directory, and in it what choir writes and nothing else. */
static int is_checkpoint(const char *path) {
  static const char *const ours[] = {"config.json", "model.safetensors", "state.safetensors", "tokenizer.model"};
  struct stat status;
  size_t found = 0, others = 0;
  DIR *d = lstat(path, &status) || !S_ISDIR(status.st_mode) ? NULL : opendir(path);
  if (!d) return 0;
  for (struct dirent *entry; (entry = readdir(d));) {
    size_t i = 0;
    while (i < 4 && strcmp(entry->d_name, ours[i])) i++;
    found += i < 4;
    others += i == 4 && strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
  }
  closedir(d);
  return found == 4 && !others;
}

/* Checkpoints beyond the newest `keep` go: of steps up to this one, because later ones were passed over, and only those
 * that hold nothing of anybody else's. What cannot be removed is left for the next time. */
static void rotate(const ch_run *run) {
  char path[PATH_MAX];
  int64_t *steps;
  int count, kept = 0, keep = run->config.train.keep_checkpoints;
  if (keep <= 0 || ch_checkpoint_list(run->out, &steps, &count)) return;
  for (int i = 0; i < count; i++) {
    ch_checkpoint_path(run->out, steps[i], path);
    if (steps[i] <= run->trainer.step && is_checkpoint(path) && kept++ >= keep) ch_dir_remove(path);
  }
  free(steps);
}

/* What has this checkpoint's name already was passed over when the run was resumed: it makes room, and stays. */
static int set_aside(const char *path) {
  char other[PATH_MAX + 32];
  if (access(path, F_OK)) return CHOIR_OK;
  snprintf(other, sizeof other, "%s.passed-over", path);
  for (int i = 2; !access(other, F_OK); i++) snprintf(other, sizeof other, "%s.passed-over-%d", path, i);
  if (rename(path, other)) return ch_error_errno("%s: cannot be renamed to %s", path, other);
  ch_notice("%s: is now called %s", path, other);
  return CHOIR_OK;
}

int ch_checkpoint_save(ch_run *run, char *path) {
  ch_dir directory;
  char file[PATH_MAX + 32];
  ch_checkpoint_path(run->out, run->trainer.step, path);
  CH_TRY(set_aside(path));
  CH_TRY(ch_dir_begin(&directory, path));
  int code = ch_model_save_into(run->trainer.model, run->tokenizer, directory.temporary);
  if (!code) {
    snprintf(file, sizeof file, "%s/state.safetensors", directory.temporary);
    code = ch_state_write(run, file);
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

int ch_state_read(ch_run *run, const choir_tensors *file, const char *path) {
  const ch_memory *memory = run->trainer.model->x.memory;
  CH_TRY(read_counters(run, file, path));
  choir_tensor *want = calloc((size_t)(CH_OPTIM_STATES * run->trainer.model->net.params.count), sizeof *want);
  if (!want) return ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for the list of tensors", path);
  int count = ch_optimizer_tensors(&run->trainer.optimizer, want), code = CHOIR_OK;
  for (int i = 0; i < count && !code; i++)
    code =
        ch_tensor_read(file, path, want[i].name, want[i].dims, want[i].shape, memory, 0, CH_AS_DEV(real, want[i].data));
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
  CH_TRY(ch_weights_load(&run->trainer.model->net.params, run->trainer.model->x.memory, file, 0));
  ch_model_weights_changed(run->trainer.model);
  snprintf(file, sizeof file, "%s/state.safetensors", path);
  CH_TRY(choir_tensors_open(file, 1, &tensors));
  int code = ch_state_read(run, tensors, file);
  choir_tensors_close(tensors);
  return code;
}
