#include "train/state.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/collective.h"
#include "file/checkpoints.h"
#include "file/dir.h"
#include "file/path_status.h"
#include "model/weights.h"

int ch_state_write(const ch_trainer *trainer, const ch_counter *counters, int count, const char *path) {
  const ch_exec *x = &trainer->model->x;
  ch_stored *tensor;
  int max = CH_OPTIM_STATES * trainer->model->net.params.count + count;
  int code = ch_comm_agree(x->comm, CH_ALLOC(&tensor, max, "the tensors of %s", path));
  int tensors = code ? 0 : ch_optimizer_tensors(&trainer->optimizer, tensor);
  int64_t value[CH_COUNTERS];
  for (int i = 0; i < count && !code; i++) {
    ch_stored *s = &tensor[tensors++];
    choir_tensor *t = &s->tensor;
    value[i] = *counters[i].value;
    s->owner = -1;
    *t = (choir_tensor){.dtype = CHOIR_I64, .dims = 0, .data = &value[i], .bytes = sizeof value[i]};
    snprintf(t->name, sizeof t->name, "%s", counters[i].name);
  }
  /* Broadcasts the first rank's counters, because only that rank knows the length of metrics.jsonl. */
  if (!code) ch_comm_broadcast(x->comm, 0, value, count * (int64_t)sizeof *value);
  if (!code) code = ch_tensors_save(x, path, tensor, tensors, trainer->model->config.train.file_bytes, NULL);
  free(tensor);
  return code;
}

typedef struct contents {
  int found, others;
} contents;

static int count_name(void *context, const char *name) {
  contents *c = context;
  int ours = ch_checkpoint_file(name);
  c->found += ours > 0;
  c->others += ours < 0;
  return CHOIR_OK;
}

/* Whether the path is a directory with files of a choir checkpoint and nothing else, as far as can be determined. */
static int is_checkpoint(const char *path) {
  int there;
  contents c = {0};
  return !ch_directory_exists(path, &there) && there && !ch_list(path, count_name, &c) && c.found == 4 && !c.others;
}

/* Removes old checkpoints of steps up to the present one. Later ones, which were skipped when the run was resumed, are
 * kept, as are directories with other files. If a checkpoint cannot be removed, the next call tries again. */
void ch_state_rotate(const char *out, const ch_trainer *trainer, int64_t best) {
  char path[PATH_MAX];
  int64_t *steps;
  int count, kept = 0, keep = trainer->model->config.train.keep_checkpoints;
  if (keep <= 0 || ch_checkpoint_list(out, &steps, &count)) return;
  for (int i = 0; i < count; i++) {
    ch_checkpoint_path(out, steps[i], path);
    if (steps[i] > trainer->step || !is_checkpoint(path)) continue;
    if (kept++ >= keep && steps[i] != best) ch_dir_remove(path);
  }
  free(steps);
}

/* Renames and keeps a directory that already has this checkpoint's name: it was skipped when the run was resumed. */
static int set_aside(const char *path) {
  char other[PATH_MAX + 32];
  int there;
  CH_TRY(ch_entry_exists(path, &there));
  if (!there) return CHOIR_OK;
  snprintf(other, sizeof other, "%s.passed-over", path);
  CH_TRY(ch_entry_exists(other, &there));
  for (int i = 2; there; i++) {
    snprintf(other, sizeof other, "%s.passed-over-%d", path, i);
    CH_TRY(ch_entry_exists(other, &there));
  }
  if (rename(path, other)) return ch_error_errno("%s: cannot be renamed to %s", path, other);
  ch_notice("%s: is now called %s", path, other);
  return CHOIR_OK;
}

static int begin_directory(const char *path, ch_dir *directory) {
  CH_TRY(set_aside(path));
  return ch_dir_begin(directory, path);
}

/* Writes all files of a checkpoint. */
static int write_contents(const ch_trainer *trainer, const choir_tokenizer *tokenizer, const ch_counter *counters,
                          int count, const char *directory) {
  const ch_comm *comm = trainer->model->x.comm;
  CH_TRY(ch_comm_agree(comm, ch_model_save_into(trainer->model, tokenizer, directory)));
  return ch_comm_agree(comm, ch_state_write(trainer, counters, count, CH_IN(directory, "state.safetensors")));
}

/* The first rank creates and commits the directory; other ranks may write files in it. */
int ch_state_save(const char *out, const ch_trainer *trainer, const choir_tokenizer *tokenizer,
                  const ch_counter *counters, int count, int64_t best, char *path) {
  ch_dir directory = {0};
  const ch_comm *comm = trainer->model->x.comm;
  ch_checkpoint_path(out, trainer->step, path);
  CH_TRY(CH_ON_FIRST(comm, begin_directory(path, &directory)));
  ch_comm_broadcast(comm, 0, directory.temporary, sizeof directory.temporary);
  int code = write_contents(trainer, tokenizer, counters, count, directory.temporary);
  if (!comm->rank) code = ch_dir_end(&directory, code);
  if (code)
    return ch_error_in(code, "checkpoint of step %" PRId64 " not saved; earlier ones are intact", trainer->step);
  if (!comm->rank) ch_state_rotate(out, trainer, best);
  return CHOIR_OK;
}

static int read_counter(const choir_tensors *file, const char *path, const ch_counter *c, int *found) {
  const choir_tensor *t = choir_tensors_find(file, c->name);
  if (!t && c->optional) return *c->value = -1, CHOIR_OK;
  if (!t || t->dtype != CHOIR_I64 || t->bytes != sizeof *c->value)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: '%s' is missing or not one I64", path, c->name);
  int64_t value;
  memcpy(&value, t->data, sizeof value);
  if (c->of && value != *c->value)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %s is not that of this checkpoint; resume with the run's own", path,
                    c->of);
  if (!c->of && value < 0) return ch_error(CHOIR_ERROR_FORMAT, "%s: '%s' is %" PRId64, path, c->name, value);
  *c->value = value;
  ++*found;
  return CHOIR_OK;
}

int ch_state_read(ch_trainer *trainer, const ch_counter *counters, int counts, const choir_tensors *file,
                  const char *path) {
  int found = 0;
  for (int i = 0; i < counts; i++) CH_TRY(read_counter(file, path, &counters[i], &found));
  ch_stored *want;
  CH_TRY(CH_ALLOC(&want, CH_OPTIM_STATES * trainer->model->net.params.count, "the tensors of %s", path));
  int count = ch_optimizer_tensors(&trainer->optimizer, want), code = CHOIR_OK;
  for (int i = 0; i < count && !code; i++) code = ch_tensor_read(file, path, &want[i], &trainer->model->x, 0);
  free(want);
  if (!code && choir_tensors_count(file) != count + found)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %d tensors, the run's optimizer and counters are %d", path,
                    choir_tensors_count(file), count + found);
  return code;
}

int ch_state_load(const char *path, ch_trainer *trainer, const ch_counter *counters, int count) {
  const char *file = CH_IN(path, "state.safetensors");
  choir_tensors *tensors;
  const ch_router *router = trainer->model->config.model.router.kind;
  CH_TRY(ch_weights_same_router(router, CH_IN(path, "model.safetensors"), 1));
  CH_TRY(ch_weights_load(&trainer->model->net.params, &trainer->model->x, CH_IN(path, "model.safetensors"), 0));
  ch_model_weights_changed(trainer->model);
  CH_TRY(choir_tensors_load(file, 1, &tensors));
  int code = ch_state_read(trainer, counters, count, tensors, file);
  choir_tensors_free(tensors);
  if (!code) trainer->model->half_step = 0;
  return code;
}
