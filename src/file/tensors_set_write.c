#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "file/tensors_set.h"

enum { SUFFIX_BYTES = sizeof CH_TENSORS_SUFFIX - 1 };

int ch_tensors_cut(const choir_tensor *tensors, int count, int64_t most, int *first) {
  int files = 1;
  int64_t bytes = 0;
  first[0] = 0;
  for (int i = 0; i < count; i++) {
    const int64_t more = (int64_t)tensors[i].bytes;
    if (most > 0 && i > first[files - 1] && bytes > most - more) {
      first[files++] = i;
      bytes = 0;
    }
    bytes += more;
  }
  first[files] = count;
  return files;
}

void ch_tensors_file_path(const char *path, int f, int files, char *out) {
  if (files == 1)
    snprintf(out, PATH_MAX, "%s", path);
  else
    snprintf(out, PATH_MAX, "%.*s-%05d-of-%05d%s", (int)strlen(path) - SUFFIX_BYTES, path, f + 1, files,
             CH_TENSORS_SUFFIX);
}

/* The file has the tensors of its part, and nothing else. */
static int check_written(const choir_tensors *file, const char *path, const choir_tensor *tensor, int count) {
  int same = choir_tensors_count(file) == count;
  for (int i = 0; i < count && same; i++) {
    const choir_tensor *t = choir_tensors_find(file, tensor[i].name);
    same = t && t->bytes == tensor[i].bytes;
  }
  if (same && choir_tensors_metadata(file, CH_TENSORS_HEADER_KEY)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: is not what was written there: does another process use the directory?",
                  path);
}

/* Adds one file to both maps of the index. */
static int add_file(const char *path, const choir_tensor *tensor, int count, json_t *weights, json_t *headers) {
  choir_tensors *file;
  int code = ch_tensors_open_file(path, 0, &file);
  if (code)
    return ch_error_in(code, "a file that a rank has written cannot be read by the first; is this a shared disk?");
  code = check_written(file, path, tensor, count);
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  for (int i = 0; i < count && !code; i++) ch_json_put(weights, tensor[i].name, json_string(name));
  if (!code) ch_json_put(headers, name, json_string(choir_tensors_metadata(file, CH_TENSORS_HEADER_KEY)));
  choir_tensors_close(file);
  return code;
}

int ch_tensors_index_write(const char *path, const choir_tensor *tensors, const int *first, int files) {
  char file[PATH_MAX];
  json_int_t total = 0;
  json_t *weights = json_object(), *headers = json_object();
  int code = CHOIR_OK;
  for (int i = 0; i < first[files]; i++) total += (json_int_t)tensors[i].bytes;
  for (int f = 0; f < files && !code; f++) {
    ch_tensors_file_path(path, f, files, file);
    code = add_file(file, tensors + first[f], first[f + 1] - first[f], weights, headers);
  }
  ch_tensors_index_path(path, file);
  json_t *root = json_pack("{s:{s:I, s:o}, s:o}", "metadata", "total_size", total, CH_TENSORS_FILES_KEY, headers,
                           "weight_map", weights);
  if (!code) return ch_json_save(root, file);
  json_decref(root);
  return code;
}
