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

static int save_state(const ch_trainer *trainer, const ch_counter *counters, int count, const char *path) {
  choir_tensor *tensor = calloc((size_t)(CH_OPTIM_STATES * trainer->model->net.params.count + count), sizeof *tensor);
  if (!tensor) return ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for the list of tensors", path);
  int tensors = ch_optimizer_tensors(&trainer->optimizer, tensor);
  for (int i = 0; i < count; i++) {
    choir_tensor *t = &tensor[tensors++];
    *t = (choir_tensor){.dtype = CHOIR_I64, .dims = 0, .data = &counters[i].value, .bytes = sizeof counters[i].value};
    snprintf(t->name, sizeof t->name, "%s", counters[i].name);
  }
  int code = ch_tensors_save(trainer->model->x.memory, path, tensor, tensors);
  free(tensor);
  return code;
}

/* Whole checkpoints beyond the newest `keep` go, but for the best; a directory that cannot be removed is left for the
 * next time. */
static void rotate(const char *out, int keep, int64_t best) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/checkpoints", out);
  for (;;) {
    int64_t oldest = INT64_MAX;
    int count = 0;
    DIR *d = opendir(path);
    if (!d) return;
    for (struct dirent *entry; (entry = readdir(d));) {
      int64_t step = ch_checkpoint_step(entry->d_name);
      if (step < 0 || step == best) continue;
      count++;
      if (step < oldest) oldest = step;
    }
    closedir(d);
    if (keep <= 0 || count <= keep) return;
    char old[PATH_MAX];
    ch_checkpoint_path(out, oldest, old);
    if (ch_dir_remove(old)) return;
  }
}

int ch_state_save(const char *out, const ch_trainer *trainer, const choir_tokenizer *tokenizer,
                  const ch_counter *counters, int count, int64_t best, char *path) {
  ch_dir directory;
  char file[PATH_MAX + 32];
  ch_checkpoint_path(out, trainer->step, path);
  CH_TRY(ch_dir_begin(&directory, path));
  int code = ch_model_save_into(trainer->model, tokenizer, directory.temporary);
  if (!code) {
    snprintf(file, sizeof file, "%s/state.safetensors", directory.temporary);
    code = save_state(trainer, counters, count, file);
  }
  if (code) {
    ch_dir_abandon(&directory);
    return ch_error_in(code, "checkpoint of step %" PRId64 " not saved; earlier ones are intact", trainer->step);
  }
  CH_TRY(ch_dir_commit(&directory));
  rotate(out, trainer->model->config.train.keep_checkpoints, best);
  return CHOIR_OK;
}

static int read_counter(const choir_tensors *file, const char *path, ch_counter *c) {
  const choir_tensor *t = choir_tensors_find(file, c->name);
  if (!t || t->dtype != CHOIR_I64 || t->bytes != sizeof c->value)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: '%s' is missing or not one I64", path, c->name);
  memcpy(&c->value, t->data, sizeof c->value);
  return CHOIR_OK;
}

static int load_state(ch_trainer *trainer, ch_counter *counters, int counts, const choir_tensors *file,
                      const char *path) {
  const ch_memory *memory = trainer->model->x.memory;
  for (int i = 0; i < counts; i++) CH_TRY(read_counter(file, path, &counters[i]));
  choir_tensor *want = calloc((size_t)(CH_OPTIM_STATES * trainer->model->net.params.count), sizeof *want);
  if (!want) return ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for the list of tensors", path);
  int count = ch_optimizer_tensors(&trainer->optimizer, want), code = CHOIR_OK;
  for (int i = 0; i < count && !code; i++)
    code = ch_tensor_read(file, path, want[i].name, want[i].dims, want[i].shape, memory, CH_AS_DEV(real, want[i].data));
  free(want);
  if (!code && choir_tensors_count(file) != count + counts)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %d tensors, the run's optimizer has %d", path, choir_tensors_count(file),
                    count + counts);
  return code;
}

int ch_state_load(const char *path, ch_trainer *trainer, ch_counter *counters, int count) {
  char file[PATH_MAX + 32];
  choir_tensors *tensors;
  snprintf(file, sizeof file, "%s/model.safetensors", path);
  CH_TRY(ch_weights_load(&trainer->model->net.params, trainer->model->x.memory, file));
  ch_model_weights_changed(trainer->model);
  snprintf(file, sizeof file, "%s/state.safetensors", path);
  CH_TRY(choir_tensors_open(file, 1, &tensors));
  int code = load_state(trainer, counters, count, tensors, file);
  choir_tensors_close(tensors);
  return code;
}
