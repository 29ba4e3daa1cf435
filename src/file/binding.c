#include "file/binding.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "file/file.h"
#include "file/json.h"

enum { TOKENIZER_LIMIT = 1 << 28 };

static void digits(char *out, const void *data, size_t size) {
  snprintf(out, 17, "%016" PRIx64, (uint64_t)XXH64(data, size, 0));
}

/* Hashes "model" as the file has it, whatever a later choir makes of it: order and spaces do not count, nor do fields
 * that training may change. */
static int config_digits(const char *path, char *out) {
  json_t *root;
  CH_TRY(ch_json_load(path, &root));
  char *text = ch_json_dump(json_object_get(root, "model"), JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
  if (text) digits(out, text, strlen(text));
  json_decref(root);
  free(text);
  return text ? CHOIR_OK : ch_error(CHOIR_ERROR_FORMAT, "%s: has no \"model\"", path);
}

static int tokenizer_digits(const char *path, char *out) {
  char *data;
  size_t size;
  CH_TRY(ch_file_read(path, TOKENIZER_LIMIT, &data, &size));
  digits(out, data, size);
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

static int digits_of(const char *directory, size_t size, int file, char *path, char *out) {
  *out = 0;
  if (snprintf(path, PATH_MAX, "%.*s%s", (int)size, directory, bound[file].name) >= PATH_MAX)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", directory);
  return access(path, F_OK) ? CHOIR_OK : bound[file].digits(path, out);
}

int ch_binding_of(const char *directory, ch_binding *binding) {
  char path[PATH_MAX], with_slash[PATH_MAX];
  if (snprintf(with_slash, sizeof with_slash, "%s/", directory) >= (int)sizeof with_slash)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", directory);
  for (int i = 0; i < FILES; i++)
    CH_TRY(digits_of(with_slash, strlen(with_slash), i, path, (char *)binding + bound[i].at));
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
  char file[PATH_MAX], have[17];
  const char *slash = strrchr(path, '/');
  for (int i = 0; i < FILES; i++) {
    const char *want = choir_tensors_metadata(weights, bound[i].key);
    if (!want) continue;
    CH_TRY(digits_of(path, slash ? (size_t)(slash + 1 - path) : 0, i, file, have));
    if (*have && strcmp(have, want))
      return ch_error(CHOIR_ERROR_FORMAT,
                      "%s: is not the file that %s was saved with: damaged, of another checkpoint, or edited. Restore "
                      "it; an edit on purpose is taken by --unchecked ('unchecked' in C and Python)",
                      file, slash ? slash + 1 : path);
  }
  return CHOIR_OK;
}

int ch_binding_holds(const char *directory) {
  char path[PATH_MAX];
  choir_tensors *weights;
  if (snprintf(path, sizeof path, "%s/model.safetensors", directory) >= (int)sizeof path) return 0;
  if (choir_tensors_open(path, 0, &weights)) return 0;
  int code = ch_binding_check(weights, path);
  choir_tensors_close(weights);
  return !code;
}
