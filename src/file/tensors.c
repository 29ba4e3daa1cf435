#include "file/tensors.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/names.h"
#include "file/file.h"
#include "file/json.h"

enum { HEADER_LIMIT = 100000000 }; /* the limit of the safetensors library */

/* The state of one call of the reader. */
typedef struct tensors_reader {
  const char *name; /* file name */
  const char *header;
  size_t header_bytes;
  const char *data;
  size_t data_bytes;
  int mapped; /* pages may be dropped after reading, because they can be read from the file again */
} tensors_reader;

/* ---- element types ---- */

static const struct {
  const char *name;
  size_t size;
} dtypes[] = {[CHOIR_F64] = {"F64", 8}, [CHOIR_F32] = {"F32", 4}, [CHOIR_BF16] = {"BF16", 2}, [CHOIR_I64] = {"I64", 8},
              [CHOIR_I32] = {"I32", 4}, [CHOIR_U64] = {"U64", 8}, [CHOIR_U8] = {"U8", 1},     [CHOIR_F16] = {"F16", 2}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

const char *ch_dtype_name(choir_dtype dtype) { return dtypes[dtype].name; }
size_t ch_dtype_size(choir_dtype dtype) { return dtypes[dtype].size; }

int ch_dtype_valid(int dtype) { return dtype >= 0 && dtype < DTYPES; }

/* A choir_dtype, or -1. */
static int find_dtype(const char *name) {
  for (int i = 0; i < DTYPES; i++)
    if (!strcmp(dtypes[i].name, name)) return i;
  return -1;
}

int ch_tensor_bytes(choir_dtype dtype, int dims, const int64_t *shape, size_t *bytes) {
  *bytes = dtypes[dtype].size;
  for (int i = 0; i < dims; i++)
    if (shape[i] < 0 || __builtin_mul_overflow(*bytes, (size_t)shape[i], bytes)) return 0;
  return 1;
}

/* ---- one tensor's entry ---- */

static int bad(const tensors_reader *r, const char *tensor, const char *what) {
  return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%.127s': %s", r->name, tensor, what);
}

static int read_dtype(const tensors_reader *r, const char *key, const json_t *value, choir_tensor *t) {
  if (!json_is_string(value)) return bad(r, key, "\"dtype\" must be a string");
  int dtype = find_dtype(json_string_value(value));
  if (dtype < 0)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "%s: tensor '%s' has dtype \"%.16s\": supported are F64, F32, F16, BF16, I64, I32, U64 and U8",
                    r->name, key, json_string_value(value));
  t->dtype = (choir_dtype)dtype;
  return CHOIR_OK;
}

/* Reads an array of at most `max` integers from 0 up. */
static int read_integers(const json_t *array, int max, int64_t *values, int *count) {
  if (!json_is_array(array) || json_array_size(array) > (size_t)max) return 0;
  *count = (int)json_array_size(array);
  for (int i = 0; i < *count; i++) {
    const json_t *value = json_array_get(array, (size_t)i);
    values[i] = json_integer_value(value);
    if (!json_is_integer(value) || values[i] < 0) return 0;
  }
  return 1;
}

static int read_tensor(const tensors_reader *r, const char *key, const json_t *entry, choir_tensor *t) {
  int64_t offsets[2];
  int count;
  if (strlen(key) >= sizeof t->name)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%.40s...': names have at most %zu bytes", r->name, key,
                    sizeof t->name - 1);
  strcpy(t->name, key);
  if (!json_is_object(entry) || json_object_size(entry) != 3)
    return bad(r, key, "must have \"dtype\", \"shape\" and \"data_offsets\", nothing else");
  CH_TRY(read_dtype(r, key, json_object_get(entry, "dtype"), t));
  if (!read_integers(json_object_get(entry, "shape"), 4, t->shape, &t->dims))
    return bad(r, key, "\"shape\" must be at most 4 integers, none negative");
  if (!read_integers(json_object_get(entry, "data_offsets"), 2, offsets, &count) || count != 2)
    return bad(r, key, "\"data_offsets\" must be two integers, none negative");
  if (!ch_tensor_bytes(t->dtype, t->dims, t->shape, &t->bytes)) return bad(r, key, "\"shape\" overflows");
  if (offsets[0] > offsets[1] || (uint64_t)offsets[1] > r->data_bytes)
    return ch_error(CHOIR_ERROR_FORMAT,
                    "%s: tensor '%s': bytes %" PRId64 " to %" PRId64 " of %zu; the file is truncated", r->name, key,
                    offsets[0], offsets[1], r->data_bytes);
  if ((uint64_t)(offsets[1] - offsets[0]) != t->bytes)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%s': its shape needs %zu bytes, it has %" PRId64, r->name, key,
                    t->bytes, offsets[1] - offsets[0]);
  t->data = r->data + offsets[0];
  return CHOIR_OK;
}

/* ---- the header ---- */

/* Finds the header by its length, the file's first 8 bytes. */
static int find_header(tensors_reader *r, const char *data, size_t size) {
  uint64_t length;
  if (size < CH_TENSORS_LENGTH_BYTES)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %zu bytes are no safetensors file", r->name, size);
  if (!memcmp(data, "version ", CH_TENSORS_LENGTH_BYTES))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: is a pointer of Git LFS and not the file: fetch that by git lfs pull",
                    r->name);
  memcpy(&length, data, sizeof length);
  length = le64toh(length);
  if (length > HEADER_LIMIT)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: a header of %" PRIu64 " bytes (at most %d): not a safetensors file",
                    r->name, length, HEADER_LIMIT);
  if (length > size - CH_TENSORS_LENGTH_BYTES)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: the file is truncated within its header (%zu bytes of %" PRIu64 ")",
                    r->name, size, length + CH_TENSORS_LENGTH_BYTES);
  r->header = data + CH_TENSORS_LENGTH_BYTES;
  r->header_bytes = (size_t)length;
  r->data = r->header + length;
  r->data_bytes = size - CH_TENSORS_LENGTH_BYTES - (size_t)length;
  size_t blank = 0;
  while (blank < length && memchr(" \t\r\n", r->header[blank], 4)) blank++;
  if (blank < length && r->header[blank] == '{') return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: the header does not begin with '{': not a safetensors file", r->name);
}

static int read_metadata(const tensors_reader *r, json_t *metadata, choir_tensors *t) {
  const char *key;
  json_t *value;
  if (json_is_null(metadata)) return CHOIR_OK;
  if (!json_is_object(metadata)) return ch_error(CHOIR_ERROR_FORMAT, "%s: __metadata__ must be an object", r->name);
  json_object_foreach(metadata, key, value) {
    if (!json_is_string(value))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: __metadata__: '%.80s' must be a string", r->name, key);
  }
  t->metadata = json_incref(metadata);
  return CHOIR_OK;
}

static int by_place(const void *a, const void *b) {
  const choir_tensor *s = a, *t = b;
  if (s->data != t->data) return s->data < t->data ? -1 : 1;
  return (s->bytes > t->bytes) - (s->bytes < t->bytes); /* empty tensors first: they take no space */
}

/* Checks that the tensors cover the data without overlap, gap or rest, so that nothing can hide in the file. */
static int check_cover(const tensors_reader *r, const choir_tensors *t) {
  const char *end = r->data;
  for (int i = 0; i < t->count; i++) {
    const choir_tensor *x = &t->tensor[i];
    if (x->data != end)
      return bad(r, x->name,
                 (const char *)x->data < end ? "overlaps another tensor" : "there is a gap before its data");
    end += x->bytes;
  }
  if (end == r->data + r->data_bytes) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: %zu bytes after the last tensor", r->name,
                  (size_t)(r->data + r->data_bytes - end));
}

static int read_entries(const tensors_reader *r, json_t *root, choir_tensors *t) {
  const char *key;
  json_t *value;
  CH_TRY(CH_ALLOC(&t->tensor, json_object_size(root), "the tensors of %s", r->name));
  json_object_foreach(root, key, value) {
    if (!strcmp(key, "__metadata__"))
      CH_TRY(read_metadata(r, value, t));
    else
      CH_TRY(read_tensor(r, key, value, &t->tensor[t->count++]));
  }
  qsort(t->tensor, (size_t)t->count, sizeof *t->tensor, by_place);
  CH_TRY(check_cover(r, t));
  return ch_names_build(&t->names, t->count, t->tensor->name, sizeof *t->tensor);
}

/* ---- checksums ---- */

static int damaged(const tensors_reader *r, const char *part) {
  return ch_error(CHOIR_ERROR_FORMAT,
                  "%s: damaged: the checksum of its %s is wrong (or another program rewrote the file and kept choir's "
                  "checksums in its metadata)",
                  r->name, part);
}

/* Hashes the data and drops its pages, because the loaded model may need nearly all memory. */
static uint64_t hash_data(const tensors_reader *r) {
  const size_t max = (size_t)64 << 20;
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  for (size_t done = 0, bytes; done < r->data_bytes; done += bytes) {
    bytes = r->data_bytes - done < max ? r->data_bytes - done : max;
    XXH64_update(&state, r->data + done, bytes);
    if (r->mapped) ch_file_forget(r->data + done, bytes);
  }
  return XXH64_digest(&state);
}

/* A file of choir must have both checksums; with only one it is refused, so that no flipped bit makes it look like
 * another program's file. */
static int check_hashes(const tensors_reader *r, const choir_tensors *t, int verify) {
  const char *header = choir_tensors_metadata(t, CH_TENSORS_HEADER_KEY);
  const char *data = choir_tensors_metadata(t, CH_TENSORS_DATA_KEY);
  const size_t opening = sizeof CH_TENSORS_OPENING - 1;
  if (!header && !data) return CHOIR_OK;
  if (!header || !data || strlen(header) != CH_TENSORS_DIGITS || r->header_bytes < opening + CH_TENSORS_DIGITS ||
      memcmp(r->header, CH_TENSORS_OPENING, opening) || memcmp(r->header + opening, header, CH_TENSORS_DIGITS))
    return damaged(r, "header");
  char is[CH_HEX_BYTES];
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  XXH64_update(&state, r->header - CH_TENSORS_LENGTH_BYTES, CH_TENSORS_LENGTH_BYTES + opening);
  XXH64_update(&state, CH_TENSORS_ZEROS, CH_TENSORS_DIGITS);
  size_t done = opening + CH_TENSORS_DIGITS;
  XXH64_update(&state, r->header + done, r->header_bytes - done);
  if (strcmp(ch_hex(XXH64_digest(&state), is), header)) return damaged(r, "header");
  if (verify && strcmp(ch_hex(hash_data(r), is), data)) return damaged(r, "data");
  return CHOIR_OK;
}

/* ---- opening files, finding tensors ---- */

static int parse(const void *data, size_t size, const char *name, int mapped, int verify, choir_tensors **tensors) {
  tensors_reader r = {.name = name, .mapped = mapped};
  json_t *root;
  *tensors = NULL;
  CH_TRY(find_header(&r, data, size));
  CH_TRY(ch_json_parse(r.header, r.header_bytes, name, &root));
  choir_tensors *t;
  int code = CH_ALLOC(&t, 1, "%s", name);
  if (!code) code = read_entries(&r, root, t);
  json_decref(root);
  if (!code) code = check_hashes(&r, t, verify);
  if (code)
    choir_tensors_free(t);
  else
    *tensors = t;
  return code;
}

int ch_tensors_check_aligned(const choir_tensors *tensors, const char *name) {
  for (int i = 0; i < tensors->count; i++)
    if ((uintptr_t)tensors->tensor[i].data % dtypes[tensors->tensor[i].dtype].size)
      return bad(&(tensors_reader){.name = name}, tensors->tensor[i].name,
                 "its data is not aligned to the size of its elements; write the file again with padding");
  return CHOIR_OK;
}

int ch_tensors_parse(const void *data, size_t size, const char *name, int verify, choir_tensors **tensors) {
  CH_TRY(parse(data, size, name, 0, verify, tensors));
  int code = ch_tensors_check_aligned(*tensors, name);
  if (code) choir_tensors_free(*tensors), *tensors = NULL;
  return code;
}

int ch_tensors_open_file(const char *path, int verify, choir_tensors **tensors) {
  ch_mapped *map;
  *tensors = NULL;
  CH_TRY(CH_ALLOC(&map, 1, "%s", path));
  int code = ch_file_map(path, &map->at, &map->bytes);
  if (!code && (code = parse(map->at, map->bytes, path, 1, verify, tensors))) ch_file_unmap(map->at, map->bytes);
  if (code) {
    free(map);
    return code;
  }
  (*tensors)->map = map;
  (*tensors)->maps = 1;
  return CHOIR_OK;
}

void choir_tensors_free(choir_tensors *tensors) {
  if (!tensors) return;
  for (int i = 0; i < tensors->maps; i++) ch_file_unmap(tensors->map[i].at, tensors->map[i].bytes);
  free(tensors->map);
  json_decref(tensors->metadata);
  ch_names_free(&tensors->names);
  free(tensors->tensor);
  free(tensors);
}

void ch_tensors_forget(const choir_tensors *tensors, const choir_tensor *tensor) {
  if (tensors->maps) ch_file_forget(tensor->data, tensor->bytes);
}

int choir_tensors_count(const choir_tensors *tensors) { return tensors ? tensors->count : 0; }

const choir_tensor *choir_tensors_at(const choir_tensors *tensors, int index) {
  return tensors && index >= 0 && index < tensors->count ? &tensors->tensor[index] : NULL;
}

const choir_tensor *choir_tensors_find(const choir_tensors *tensors, const char *name) {
  if (!tensors || !name) return NULL;
  int row = ch_names_find(&tensors->names, name);
  return row < 0 ? NULL : &tensors->tensor[row];
}

const char *choir_tensors_metadata(const choir_tensors *tensors, const char *key) {
  if (!tensors || !key) return NULL;
  return json_string_value(json_object_get(tensors->metadata, key));
}
