#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/hash.h"
#include "file/file.h"
#include "file/json.h"
#include "file/tensors.h"

/* The order of tensors in the file: larger elements first, otherwise as given, so that all data is aligned without
 * gaps. */
typedef struct tensors_plan {
  const char *path;
  ch_tensor_fetch fetch;
  void *context;
  const choir_tensor **tensor;
  int count;
  char *header; /* 8 bytes of length, then JSON, then spaces up to a multiple of 8 */
  size_t header_bytes;
} tensors_plan;

static int check_tensor(const tensors_plan *p, const choir_tensor *t) {
  size_t bytes;
  if (!memchr(t->name, 0, sizeof t->name) || !strcmp(t->name, "__metadata__"))
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s: '%.40s' cannot be a tensor's name", p->path, t->name);
  if (!ch_dtype_valid(t->dtype) || t->dims < 0 || t->dims > 4 || !ch_tensor_bytes(t->dtype, t->dims, t->shape, &bytes))
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s: tensor '%s': impossible type or shape", p->path, t->name);
  if (bytes != t->bytes || (bytes && !t->data && !p->fetch))
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s: tensor '%s': its shape needs %zu bytes, %zu are given", p->path, t->name,
                    bytes, t->data ? t->bytes : 0);
  return CHOIR_OK;
}

/* Sorts by element size, largest first; a selection by size keeps the given order among equals. */
static int order(tensors_plan *p, const choir_tensor *tensors, int count) {
  for (int i = 0; i < count; i++) CH_TRY(check_tensor(p, &tensors[i]));
  CH_TRY(CH_ALLOC(&p->tensor, count, "the tensors of %s", p->path));
  for (size_t size = 8; size; size /= 2)
    for (int i = 0; i < count; i++)
      if (ch_dtype_size(tensors[i].dtype) == size) p->tensor[p->count++] = &tensors[i];
  return CHOIR_OK;
}

/* Adds a member that must be new. Takes over `value`; NULL means text that is not UTF-8. */
static int put(const tensors_plan *p, json_t *object, const char *key, json_t *value) {
  if (json_object_get(object, key)) {
    json_decref(value);
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s: '%.127s' is there twice", p->path, key);
  }
  if (json_object_set_new(object, key, value))
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s: '%.127s' or what it stands for is not UTF-8", p->path, key);
  return CHOIR_OK;
}

/* Puts both checksums first, as zeros that are overwritten at the end. */
static int put_metadata(const tensors_plan *p, json_t *root, const char *const *metadata) {
  json_t *object = json_object();
  CH_TRY(put(p, root, "__metadata__", object));
  CH_TRY(put(p, object, CH_TENSORS_HEADER_KEY, json_string(CH_TENSORS_ZEROS)));
  CH_TRY(put(p, object, CH_TENSORS_DATA_KEY, json_string(CH_TENSORS_ZEROS)));
  for (; metadata && metadata[0]; metadata += 2) CH_TRY(put(p, object, metadata[0], json_string(metadata[1])));
  return CHOIR_OK;
}

static int put_tensors(const tensors_plan *p, json_t *root) {
  size_t begin = 0;
  for (int i = 0; i < p->count; i++) {
    const choir_tensor *t = p->tensor[i];
    json_t *shape = json_array();
    for (int k = 0; k < t->dims; k++) ch_json_add(shape, json_integer(t->shape[k]));
    CH_TRY(put(p, root, t->name,
               json_pack("{s:s, s:o, s:[I,I]}", "dtype", ch_dtype_name(t->dtype), "shape", shape, "data_offsets",
                         (json_int_t)begin, (json_int_t)(begin + t->bytes))));
    begin += t->bytes;
  }
  return CHOIR_OK;
}

/* The header's text, with its length and padding. */
static int lay_out(tensors_plan *p, const json_t *root) {
  char *text = ch_json_dump(root, JSON_COMPACT);
  size_t length = text ? strlen(text) : 0, padded = (length + 7) & ~(size_t)7;
  p->header_bytes = CH_TENSORS_LENGTH_BYTES + padded;
  p->header = text ? malloc(p->header_bytes + 1) : NULL;
  if (p->header) {
    uint64_t little = htole64(padded);
    memcpy(p->header, &little, sizeof little);
    memset(p->header + CH_TENSORS_LENGTH_BYTES, ' ', padded);
    memcpy(p->header + CH_TENSORS_LENGTH_BYTES, text, length);
  }
  free(text);
  return p->header ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "%s: not enough memory for its header", p->path);
}

/* Writes the checksums into the header, first the data's, then the header's. */
static void seal(const tensors_plan *p, uint64_t data) {
  char *first = p->header + CH_TENSORS_LENGTH_BYTES + sizeof CH_TENSORS_OPENING - 1, digits[CH_HEX_BYTES];
  char *second = first + CH_TENSORS_DIGITS + sizeof CH_TENSORS_BETWEEN - 1;
  memcpy(second, ch_hex(data, digits), CH_TENSORS_DIGITS);
  memcpy(first, ch_hex(XXH64(p->header, p->header_bytes, 0), digits), CH_TENSORS_DIGITS);
}

static int make_header(tensors_plan *p, const char *const *metadata) {
  json_t *root = json_object();
  int code = put_metadata(p, root, metadata);
  if (!code) code = put_tensors(p, root);
  if (!code) code = lay_out(p, root);
  json_decref(root);
  return code;
}

static int write_tensors(const tensors_plan *p) {
  ch_file file;
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  CH_TRY(ch_file_begin(&file, p->path));
  file.needed = p->header_bytes;
  for (int i = 0; i < p->count; i++) file.needed += p->tensor[i]->bytes;
  ch_file_write(&file, p->header, p->header_bytes);
  for (int i = 0; i < p->count; i++) {
    const void *data = p->fetch ? p->fetch(p->context, p->tensor[i]) : p->tensor[i]->data;
    if (!data && p->tensor[i]->bytes) {
      ch_file_abandon(&file);
      return CHOIR_ERROR_IO;
    }
    XXH64_update(&state, data, p->tensor[i]->bytes);
    ch_file_write(&file, data, p->tensor[i]->bytes);
  }
  seal(p, XXH64_digest(&state));
  ch_file_rewrite(&file, 0, p->header, p->header_bytes);
  return ch_file_commit(&file);
}

int ch_tensors_write(const char *path, const choir_tensor *tensors, int count, const char *const *metadata,
                     ch_tensor_fetch fetch, void *context) {
  tensors_plan p = {.path = path, .fetch = fetch, .context = context};
  int code = order(&p, tensors, count);
  if (!code) code = make_header(&p, metadata);
  if (!code) code = write_tensors(&p);
  free(p.header);
  free(p.tensor);
  return code;
}

int choir_tensors_write(const char *path, const choir_tensor *tensors, int count, const char *const *metadata) {
  CH_ENTER(path, tensors);
  return ch_tensors_write(path, tensors, count, metadata, NULL, NULL);
}
