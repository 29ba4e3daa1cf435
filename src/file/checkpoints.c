#include "file/checkpoints.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/hash.h"
#include "file/file.h"
#include "file/json.h"
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

int ch_checkpoint_list(const char *run, int64_t **steps, int *count) {
  const char *path = CH_IN(run, "checkpoints");
  ch_buffer found = {0};
  int code = CHOIR_OK;
  *steps = NULL;
  *count = 0;
  struct stat there;
  DIR *d = opendir(path);
  if (!d && errno == ENOENT && lstat(path, &there)) return CHOIR_OK; /* no directory; a dangling link is an error */
  if (!d) return ch_error_errno("%s: cannot read", path);
  for (struct dirent *entry; !code && (entry = readdir(d));) {
    const char *name = entry->d_name;
    int64_t step = ch_checkpoint_step(name);
    if (step >= 0)
      code = ch_buffer_append(&found, &step, sizeof step);
    else if (strspn(name, "0123456789") == strlen(name))
      ch_notice("%s/%s: not a name that choir gives to a checkpoint; passed over", path, name);
  }
  closedir(d);
  if (code) {
    free(found.data);
    return code;
  }
  *steps = (int64_t *)(void *)found.data;
  *count = (int)(found.size / sizeof **steps);
  if (*count) qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
  return CHOIR_OK;
}

/* The newest of them, whole or not; -1: none, or the directory cannot be read. */
static int64_t newest_step(const char *run) {
  int64_t *steps;
  int count;
  if (ch_checkpoint_list(run, &steps, &count)) return -1;
  int64_t newest = count ? steps[0] : -1;
  free(steps);
  return newest;
}

/* The step that the file names, or -1. */
static int64_t named_step(const char *path) {
  char *text;
  size_t size;
  if (ch_file_read(path, 64, &text, &size)) return -1;
  text[strcspn(text, "\n")] = 0;
  int64_t step = ch_checkpoint_step(text);
  free(text);
  return step;
}

int ch_checkpoint_best(const char *run, char *out) {
  const char *path = CH_IN(run, "best");
  if (access(path, F_OK)) return 0;
  int64_t step = named_step(path);
  if (step >= 0) ch_checkpoint_path(run, step, out);
  if (step >= 0 && !access(out, F_OK)) return 1;
  ch_notice("%s: names no checkpoint that is there; the newest is taken", path);
  return 0;
}

int ch_checkpoint_resolve(const char *path, char *out) {
  if (ch_tensors_there(CH_IN(path, "model.safetensors"))) {
    snprintf(out, PATH_MAX, "%s", path);
    return CHOIR_OK;
  }
  if (access(path, F_OK) != 0) return ch_error_errno("%s: cannot open checkpoint", path);
  if (ch_checkpoint_best(path, out)) return CHOIR_OK;
  int64_t step = newest_step(path);
  if (step < 0)
    return ch_error(CHOIR_ERROR_IO, "%s: neither a checkpoint (no model.safetensors) nor a run with checkpoints/",
                    path);
  ch_checkpoint_path(path, step, out);
  return CHOIR_OK;
}

enum { TOKENIZER_LIMIT = 1 << 28 };

/* Hashes "model" as the file has it, whatever a later choir makes of it: order and spaces do not count, nor do fields
 * that training may change. */
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

/* Of the file in a directory, if it is there. */
static int digits_of(const char *directory, int file, char *out) {
  const char *path = CH_IN(directory, bound[file].name);
  *out = 0;
  return access(path, F_OK) ? CHOIR_OK : bound[file].digits(path, out);
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
  if (choir_tensors_open(path, 0, &weights)) return 0;
  int code = ch_binding_check(weights, path);
  choir_tensors_close(weights);
  return !code;
}
