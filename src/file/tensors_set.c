#include "file/tensors_set.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "file/json.h"
#include "file/path_status.h"
#include "file/temporary.h"

enum { SUFFIX_BYTES = sizeof CH_TENSORS_SUFFIX - 1 };

void ch_tensors_index_path(const char *path, char *out) { snprintf(out, PATH_MAX, "%s%s", path, CH_TENSORS_INDEX); }

static int index_exists(const char *path, int *there) {
  char index[PATH_MAX];
  ch_tensors_index_path(path, index);
  return ch_path_exists(index, there);
}

int ch_tensors_exist(const char *path, int *there) {
  CH_TRY(ch_path_exists(path, there));
  return *there ? CHOIR_OK : index_exists(path, there);
}

int ch_tensors_kind(const char *name, const char *whole) {
  size_t stem = strlen(whole) - SUFFIX_BYTES;
  int f, files, end = 0;
  if (!strcmp(name, whole)) return CH_KIND_WHOLE;
  if (!strncmp(name, whole, stem + SUFFIX_BYTES) && !strcmp(name + stem + SUFFIX_BYTES, CH_TENSORS_INDEX))
    return CH_KIND_INDEX;
  if (strncmp(name, whole, stem) || sscanf(name + stem, "-%5d-of-%5d%n", &f, &files, &end) != 2 || !end)
    return CH_KIND_OTHER;
  return strcmp(name + stem + end, CH_TENSORS_SUFFIX) ? CH_KIND_OTHER : CH_KIND_PART;
}

/* An index being read. */
typedef struct set {
  const char *name; /* name of the index */
  const json_t *map;
  json_t *files; /* names of its files, each once, in the order of the map */
  int count;
  choir_tensors **file;
} set;

/* Checks that a file name has no directories, so that an index cannot make choir read other directories. */
static int check_name(const set *s, const char *tensor, const char *file) {
  size_t length = file ? strlen(file) : 0;
  if (length > SUFFIX_BYTES && !strchr(file, '/') && !strcmp(file + length - SUFFIX_BYTES, CH_TENSORS_SUFFIX))
    return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: \"weight_map\": '%.127s' must name a file NAME%s beside the index", s->name,
                  tensor, CH_TENSORS_SUFFIX);
}

static int list_files(set *s) {
  const char *tensor;
  json_t *value;
  s->files = json_object();
  json_object_foreach((json_t *)(uintptr_t)s->map, tensor, value) {
    const char *file = json_string_value(value);
    CH_TRY(check_name(s, tensor, file));
    if (json_object_set_new(s->files, file, json_null()))
      return ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for the list of files", s->name);
  }
  return CH_ALLOC(&s->file, json_object_size(s->files), "the files of %s", s->name);
}

/* Checks that the index maps every tensor of `file` to that file, and counts them. Files of other programs may have
 * further tensors, which are ignored. */
static int check_file(const set *s, int foreign, const char *file, const choir_tensors *tensors, size_t *count) {
  for (int i = 0; i < tensors->count; i++) {
    const char *tensor = tensors->tensor[i].name, *said = json_string_value(json_object_get(s->map, tensor));
    if (!said && !foreign)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: '%s' of %s is not in its \"weight_map\"", s->name, tensor, file);
    if (!said) ch_notice("%s: '%s' of %s is not in its \"weight_map\", and left out", s->name, tensor, file);
    *count += said != NULL;
    if (said && strcmp(said, file))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: '%s' is in %s, and by its \"weight_map\" in %s", s->name, tensor, file,
                      said);
  }
  return CHOIR_OK;
}

/* Checks that choir's files belong to this index, so that files of two checkpoints are not mixed. */
static int check_header(const set *s, const json_t *headers, const char *file, const choir_tensors *tensors) {
  const char *have = choir_tensors_metadata(tensors, CH_TENSORS_HEADER_KEY);
  const char *want = json_string_value(json_object_get(headers, file));
  if (!have && !want && !headers) return CHOIR_OK;
  if (have && want && !strcmp(have, want)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: %s is not the file that this index was written for", s->name, file);
}

static int open_files(set *s, const json_t *headers, ch_tensors_opener open, void *context) {
  const char *file;
  json_t *none;
  size_t tensors = 0;
  json_object_foreach(s->files, file, none) {
    choir_tensors **t = &s->file[s->count];
    CH_TRY(open(context, file, t));
    s->count++;
    CH_TRY(check_file(s, !headers, file, *t, &tensors));
    CH_TRY(check_header(s, headers, file, *t));
  }
  if (tensors == json_object_size(s->map)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: \"weight_map\" names %zu tensors, and its files have %zu", s->name,
                  json_object_size(s->map), tensors);
}

/* Collects all tensors that the index names. */
static int merge(const set *s, choir_tensors *all) {
  int maps = 0, count = 0;
  for (int f = 0; f < s->count; f++) maps += s->file[f]->maps, count += s->file[f]->count;
  CH_TRY(CH_ALLOC(&all->map, maps, "the files of %s", s->name));
  CH_TRY(CH_ALLOC(&all->tensor, count, "the tensors of %s", s->name));
  for (int f = 0; f < s->count; f++) {
    choir_tensors *part = s->file[f];
    for (int i = 0; i < part->maps; i++) all->map[all->maps++] = part->map[i];
    for (int i = 0; i < part->count; i++)
      if (json_object_get(s->map, part->tensor[i].name)) all->tensor[all->count++] = part->tensor[i];
    part->maps = 0;
  }
  if (s->count) all->metadata = json_incref(s->file[0]->metadata);
  return ch_names_build(&all->names, all->count, all->tensor->name, sizeof *all->tensor);
}

/* The total size in choir's index must be correct; other programs' may be for another element type or outdated. */
static int check_total(const choir_tensors *all, const char *name, const json_t *total, int foreign) {
  json_int_t bytes = 0;
  for (int i = 0; i < all->count; i++) bytes += (json_int_t)all->tensor[i].bytes;
  if (foreign || !json_is_integer(total) || json_integer_value(total) == bytes) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT,
                  "%s: \"total_size\" is %" JSON_INTEGER_FORMAT ", its files have %" JSON_INTEGER_FORMAT
                  " bytes of tensors",
                  name, json_integer_value(total), bytes);
}

int ch_tensors_set_join(const json_t *index, const char *name, ch_tensors_opener open, void *context,
                        choir_tensors **tensors) {
  set s = {.name = name};
  json_t *map;
  const json_t *metadata = json_object_get(index, "metadata");
  choir_tensors *all;
  int code = CH_ALLOC(&all, 1, "%s", name);
  if (!code) code = ch_json_get_object(index, name, "weight_map", &map);
  if (!code) s.map = map, code = list_files(&s);
  if (!code) code = open_files(&s, json_object_get(metadata, CH_TENSORS_FILES_KEY), open, context);
  if (!code) code = merge(&s, all);
  if (!code)
    code = check_total(all, name, json_object_get(metadata, "total_size"),
                       !json_object_get(metadata, CH_TENSORS_FILES_KEY));
  for (int f = 0; f < s.count; f++) choir_tensors_free(s.file[f]);
  free(s.file);
  json_decref(s.files);
  if (code) choir_tensors_free(all), all = NULL;
  *tensors = all;
  return code;
}

typedef struct {
  const char *path;
  int verify;
} sibling;

static int open_sibling(void *context, const char *file, choir_tensors **tensors) {
  const sibling *b = context;
  char directory[PATH_MAX];
  ch_path_parent(b->path, directory, sizeof directory);
  return ch_tensors_open_file(CH_IN(directory, file), b->verify, tensors);
}

static int open_set(const char *path, int verify, choir_tensors **tensors) {
  char index[PATH_MAX];
  json_t *root;
  sibling b = {path, verify};
  ch_tensors_index_path(path, index);
  CH_TRY(ch_json_load(index, &root));
  int code = ch_tensors_set_join(root, index, open_sibling, &b, tensors);
  json_decref(root);
  return code;
}

int ch_tensors_open_unaligned(const char *path, int verify, choir_tensors **tensors) {
  int whole, several = 0;
  *tensors = NULL;
  CH_TRY(ch_path_exists(path, &whole));
  if (!whole) CH_TRY(index_exists(path, &several));
  return several ? open_set(path, verify, tensors) : ch_tensors_open_file(path, verify, tensors);
}

int choir_tensors_load(const char *path, int verify, choir_tensors **tensors) {
  CH_ENTER(path, tensors);
  CH_TRY(ch_tensors_open_unaligned(path, verify, tensors));
  int code = ch_tensors_check_aligned(*tensors, path);
  if (code) choir_tensors_free(*tensors), *tensors = NULL;
  return code;
}

int ch_tensors_cut(const choir_tensor *tensors, int count, int64_t max, int *first) {
  int files = 1;
  int64_t bytes = 0;
  first[0] = 0;
  for (int i = 0; i < count; i++) {
    const int64_t more = (int64_t)tensors[i].bytes;
    if (max > 0 && i > first[files - 1] && bytes > max - more) {
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

/* Checks that a file has exactly the tensors of its part. */
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
  choir_tensors_free(file);
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
