#include "file/checkpoints.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/hash.h"
#include "file/file.h"
#include "file/json.h"
#include "file/path_status.h"
#include "file/run_files.h"
#include "file/tensors_set.h"

void ch_checkpoint_path(const char *run, int64_t step, char *out) {
  snprintf(out, PATH_MAX, "%s/checkpoints/%08" PRId64, run, step);
}

int64_t ch_checkpoint_step(const char *name) {
  char same[32];
  if (strspn(name, "0123456789") != strlen(name)) return -1;
  errno = 0;
  int64_t step = strtoll(name, NULL, 10);
  snprintf(same, sizeof same, "%08" PRId64, step);
  return errno || strcmp(same, name) ? -1 : step;
}

static int newest_first(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

typedef struct found {
  const char *path;
  ch_buffer steps;
} found;

static int add_step(void *context, const char *name) {
  found *f = context;
  int64_t step = ch_checkpoint_step(name);
  if (step >= 0) return ch_buffer_append(&f->steps, &step, sizeof step);
  if (strspn(name, "0123456789") == strlen(name))
    ch_notice("%s/%s: not a name that choir gives to a checkpoint; passed over", f->path, name);
  return CHOIR_OK;
}

int ch_checkpoint_list(const char *run, int64_t **steps, int *count) {
  found f = {.path = CH_IN(run, CH_RUN_CHECKPOINTS)};
  int there;
  *steps = NULL;
  *count = 0;
  CH_TRY(ch_entry_exists(f.path, &there));
  if (!there) return CHOIR_OK; /* an existing file must be readable */
  int code = ch_list(f.path, add_step, &f);
  if (code) {
    free(f.steps.data);
    return code;
  }
  *steps = (int64_t *)(void *)f.steps.data;
  *count = (int)(f.steps.size / sizeof **steps);
  if (*count) qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
  return CHOIR_OK;
}

int ch_checkpoint_file(const char *name) {
  static const char *const plain[] = {"config.json", "tokenizer.model"};
  static const char *const tensors[] = {"model.safetensors", "state.safetensors"};
  for (int i = 0; i < 2; i++) {
    int kind = ch_tensors_kind(name, tensors[i]);
    if (!strcmp(name, plain[i]) || kind == CH_KIND_WHOLE || kind == CH_KIND_INDEX) return 1;
    if (kind == CH_KIND_PART) return 0;
  }
  return -1;
}

static int own_file(void *directory, const char *name) {
  int there;
  return ch_checkpoint_file(name) < 0 ? CHOIR_OK : ch_regular_exists(CH_IN(directory, name), &there);
}

int ch_checkpoint_check_files(const char *directory) {
  return ch_list(directory, own_file, (void *)(uintptr_t)directory);
}

/* The step of the run's newest checkpoint, intact or not; -1: no checkpoint. */
static int newest_step(const char *run, int64_t *newest) {
  int64_t *steps;
  int count;
  CH_TRY(ch_checkpoint_list(run, &steps, &count));
  *newest = count ? steps[0] : -1;
  free(steps);
  return CHOIR_OK;
}

/* Reads the step that the file RUN/best names; -1: none. */
static int named_step(const char *path, int64_t *step) {
  char *text;
  size_t size;
  int code = ch_file_read(path, 64, &text, &size);
  *step = -1;
  if (code) return code == CHOIR_ERROR_FORMAT ? CHOIR_OK : code; /* too large to contain only a step */
  text[strcspn(text, "\n")] = 0;
  *step = ch_checkpoint_step(text);
  free(text);
  return CHOIR_OK;
}

int ch_checkpoint_best(const char *run, char *out, int *there) {
  const char *path = CH_IN(run, CH_RUN_BEST);
  int64_t step;
  CH_TRY(ch_regular_exists(path, there));
  if (!*there) return CHOIR_OK;
  CH_TRY(named_step(path, &step));
  *there = step >= 0;
  if (*there) ch_checkpoint_path(run, step, out);
  if (*there) CH_TRY(ch_path_exists(out, there));
  if (!*there) ch_notice("%s: names no checkpoint that is there; the newest is taken", path);
  return CHOIR_OK;
}

/* Writes "; the run keeps steps 300, 400", for the error about a missing checkpoint of a run. */
static void say_kept(const char *path, char *text, size_t size) {
  char all[PATH_MAX], run[PATH_MAX];
  int64_t *steps;
  int count;
  const char *name = strrchr(path, '/');
  *text = 0;
  if (!name || ch_checkpoint_step(name + 1) < 0) return;
  ch_path_parent(path, all, sizeof all);
  ch_path_parent(all, run, sizeof run);
  if (ch_checkpoint_list(run, &steps, &count)) return;
  size_t used = count ? (size_t)snprintf(text, size, " (the run keeps steps") : 0;
  for (int i = count - 1; i >= 0 && used + 24 < size; i--)
    used += (size_t)snprintf(text + used, size - used, " %" PRId64 "%s", steps[i], i ? "," : ")");
  free(steps);
}

int ch_checkpoint_absent(const char *path) {
  char kept[256];
  say_kept(path, kept, sizeof kept);
  errno = ENOENT;
  return ch_error_errno("%s: cannot open checkpoint%s", path, kept);
}

int ch_checkpoint_resolve(const char *path, char *out) {
  int there;
  int64_t step;
  CH_TRY(ch_tensors_exist(CH_IN(path, "model.safetensors"), &there));
  if (there) {
    snprintf(out, PATH_MAX, "%s", path);
    return CHOIR_OK;
  }
  CH_TRY(ch_path_exists(path, &there));
  if (!there) return ch_checkpoint_absent(path);
  CH_TRY(ch_checkpoint_best(path, out, &there));
  if (there) return CHOIR_OK;
  CH_TRY(newest_step(path, &step));
  if (step < 0)
    return ch_error(CHOIR_ERROR_IO, "%s: neither a checkpoint (no model.safetensors) nor a run with checkpoints/",
                    path);
  ch_checkpoint_path(path, step, out);
  return CHOIR_OK;
}

enum { TOKENIZER_LIMIT = 1 << 28 };

/* Hashes "model" of config.json as the file has it, independent of choir's version: order and spaces do not count,
 * nor do fields that training may change. */
static int config_digits(const char *path, char *out) {
  json_t *root;
  CH_TRY(ch_json_load(path, &root));
  char *text = ch_json_dump(json_object_get(root, "model"), JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
  if (text) ch_hex(XXH64(text, strlen(text), 0), out);
  json_decref(root);
  free(text);
  return text ? CHOIR_OK : ch_error(CHOIR_ERROR_FORMAT, "%s: has no \"model\"", path);
}

static int tokenizer_digits(const char *path, char *out) {
  char *data;
  size_t size;
  CH_TRY(ch_file_read(path, TOKENIZER_LIMIT, &data, &size));
  ch_hex(XXH64(data, size, 0), out);
  free(data);
  return CHOIR_OK;
}

static const struct {
  const char *name, *key;
  size_t at;
  int (*digits)(const char *path, char *out);
} bound[] = {{"config.json", CH_BINDING_CONFIG_KEY, offsetof(ch_binding, config), config_digits},
             {"tokenizer.model", CH_BINDING_TOKENIZER_KEY, offsetof(ch_binding, tokenizer), tokenizer_digits}};
enum { FILES = sizeof bound / sizeof *bound };

/* The checksum of one of a directory's files in hexadecimal digits; empty if there is no such file. */
static int digits_of(const char *directory, int file, char *out) {
  const char *path = CH_IN(directory, bound[file].name);
  int there;
  *out = 0;
  CH_TRY(ch_path_exists(path, &there));
  return there ? bound[file].digits(path, out) : CHOIR_OK;
}

int ch_binding_of(const char *directory, ch_binding *binding) {
  for (int i = 0; i < FILES; i++) CH_TRY(digits_of(directory, i, (char *)binding + bound[i].at));
  return CHOIR_OK;
}

void ch_binding_metadata(const ch_binding *binding, const char *metadata[5]) {
  int used = 0;
  for (int i = 0; i < FILES; i++) {
    const char *value = (const char *)binding + bound[i].at;
    if (*value) metadata[used++] = bound[i].key, metadata[used++] = value;
  }
  metadata[used] = NULL;
}

int ch_binding_check(const choir_tensors *weights, const char *path) {
  char directory[PATH_MAX], have[17];
  const char *slash = strrchr(path, '/');
  ch_path_parent(path, directory, sizeof directory);
  for (int i = 0; i < FILES; i++) {
    const char *want = choir_tensors_metadata(weights, bound[i].key);
    if (!want) continue;
    CH_TRY(digits_of(directory, i, have));
    if (*have && strcmp(have, want))
      return ch_error(CHOIR_ERROR_FORMAT,
                      "%s: is not the file that %s was saved with: damaged, of another checkpoint, or edited. Restore "
                      "it; an edit on purpose is taken by --unchecked ('unchecked' in C and Python)",
                      CH_IN(directory, bound[i].name), slash ? slash + 1 : path);
  }
  return CHOIR_OK;
}

int ch_binding_holds(const char *directory) {
  const char *path = CH_IN(directory, "model.safetensors");
  choir_tensors *weights;
  if (choir_tensors_load(path, 0, &weights)) return 0;
  int code = ch_binding_check(weights, path);
  choir_tensors_free(weights);
  return !code;
}
