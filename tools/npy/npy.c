#include "npy/npy.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/real.h"
#include "file/file.h"

/* The format: "\x93NUMPY", version bytes, length of the header (2 bytes little-endian in version 1, 4 from 2 on), the
 * header (a Python dict literal with exactly the keys descr, fortran_order and shape, padded with spaces, ended by a
 * newline), the elements. */
static const char magic[] = "\x93NUMPY";
enum { MAGIC = 6, HEADER_LIMIT = 1 << 16, MAX_DIMS = 8 };

static const struct {
  const char *descr, *name;
  size_t size;
} types[] = {
    [CH_NPY_FLOAT32] = {"<f4", "float32", 4}, [CH_NPY_FLOAT64] = {"<f8", "float64", 8},
    [CH_NPY_INT32] = {"<i4", "int32", 4},     [CH_NPY_INT64] = {"<i8", "int64", 8},
    [CH_NPY_UINT8] = {"|u1", "uint8", 1},     [CH_NPY_UINT8 + 1] = {"<f2", "float16", 2}}; /* read as float32 only */
enum { TYPES = sizeof types / sizeof *types, FLOAT16 = CH_NPY_UINT8 + 1, WRITTEN = FLOAT16 };

/* ---- the header: a Python dict literal of known keys ---- */

typedef struct cursor {
  const char *at, *end;
} cursor;

static void skip_space(cursor *c) {
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t')) c->at++;
}

static int take_char(cursor *c, char wanted) {
  skip_space(c);
  if (c->at >= c->end || *c->at != wanted) return 0;
  c->at++;
  return 1;
}

/* Parses 'text' or "text" without escapes. */
static int take_string(cursor *c, char *text, size_t size) {
  size_t used = 0;
  skip_space(c);
  if (c->at >= c->end || (*c->at != '\'' && *c->at != '"')) return 0;
  char quote = *c->at++;
  for (; c->at < c->end && *c->at != quote && *c->at != '\\' && used + 1 < size; c->at++) text[used++] = *c->at;
  text[used] = 0;
  return c->at < c->end && *c->at++ == quote;
}

static int take_word(cursor *c, const char *word) {
  size_t length = strlen(word);
  skip_space(c);
  if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length)) return 0;
  c->at += length;
  return 1;
}

static int take_integer(cursor *c, int64_t *value) {
  skip_space(c);
  const char *begin = c->at;
  for (*value = 0; c->at < c->end && isdigit((unsigned char)*c->at); c->at++)
    if (__builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, *c->at - '0', value)) return 0;
  return c->at > begin;
}

/* (), (3,), (2, 3), (2, 3,) */
static int take_shape(cursor *c, ch_npy *array) {
  int more = 1;
  if (!take_char(c, '(')) return 0;
  for (array->dims = 0; !take_char(c, ')'); more = take_char(c, ','))
    if (!more || array->dims == MAX_DIMS || !take_integer(c, &array->shape[array->dims++])) return 0;
  return array->dims != 1 || more; /* (3) is a number in Python */
}

/* The header of a file. */
typedef struct npy_header {
  const char *name; /* file name */
  cursor text;
  const char *elements;
  size_t element_bytes;
  char descr[16];
  int fortran, keys; /* fortran_order; bits of the keys already seen */
  ch_npy array;      /* shape, and type as stored */
  size_t count;
} npy_header;

static int take_entry(cursor *c, npy_header *h) {
  char key[16];
  if (!take_string(c, key, sizeof key) || !take_char(c, ':')) return 0;
  int bit = !strcmp(key, "descr") ? 1 : !strcmp(key, "fortran_order") ? 2 : !strcmp(key, "shape") ? 4 : 0;
  if (!bit || h->keys & bit) return 0;
  h->keys |= bit;
  if (bit == 1) return take_string(c, h->descr, sizeof h->descr);
  if (bit == 4) return take_shape(c, &h->array);
  h->fortran = take_word(c, "True");
  return h->fortran || take_word(c, "False");
}

static int take_header(cursor *c, npy_header *h) {
  int more = 1;
  if (!take_char(c, '{')) return 0;
  for (; !take_char(c, '}'); more = take_char(c, ','))
    if (!more || !take_entry(c, h)) return 0;
  skip_space(c);
  return h->keys == 7 && c->at == c->end;
}

/* ---- reading ---- */

/* Splits a file into header and elements. */
static int find_header(npy_header *h, const unsigned char *data, size_t size) {
  if (size < MAGIC + 6 || memcmp(data, magic, MAGIC))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: not a .npy file", h->name);
  int version = data[MAGIC];
  if (version < 1 || version > 2)
    return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: .npy version %d: 1 and 2 are supported", h->name, version);
  size_t begin = MAGIC + (version == 1 ? 4 : 6), length = data[8] | (size_t)data[9] << 8;
  if (version == 2) length |= (size_t)data[10] << 16 | (size_t)data[11] << 24;
  if (length > HEADER_LIMIT || length > size - begin)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: truncated: a header of %zu bytes in a file of %zu", h->name, length, size);
  const char *text = (const char *)data + begin;
  h->text = (cursor){text, text + length};
  h->elements = text + length;
  h->element_bytes = size - begin - length;
  return CHOIR_OK;
}

static int find_type(npy_header *h) {
  for (int i = 0; i < TYPES; i++)
    if (!strcmp(h->descr, types[i].descr)) {
      h->array.type = (ch_npy_type)i;
      return CHOIR_OK;
    }
  return ch_error(
      CHOIR_ERROR_UNSUPPORTED,
      "%s: elements are '%s': supported are float16, float32, float64, int32, int64 (little-endian) and uint8", h->name,
      h->descr);
}

/* Computes the number of elements, if the shape fits into memory and the rest of the file has exactly that size. */
static int count_elements(npy_header *h) {
  size_t size = types[h->array.type].size, bytes = size;
  int fits = 1;
  for (int i = 0; i < h->array.dims; i++)
    fits &= !__builtin_mul_overflow(bytes, (size_t)h->array.shape[i], &bytes) && bytes <= PTRDIFF_MAX;
  if (!fits) return ch_error(CHOIR_ERROR_FORMAT, "%s: its shape overflows", h->name);
  if (bytes != h->element_bytes)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: its shape needs %zu bytes of %s, it has %zu%s", h->name, bytes,
                    types[h->array.type].name, h->element_bytes, h->element_bytes < bytes ? ": truncated" : "");
  h->count = bytes / size;
  return CHOIR_OK;
}

/* Converts float16 and float64 to float32, int64 to int32 if every value fits. */
static int convert(const npy_header *h, ch_npy *array) {
  int widens = (int)h->array.type == FLOAT16;
  for (size_t i = 0; i < h->count && widens; i++) {
    uint16_t half;
    memcpy(&half, h->elements + 2 * i, 2);
    ((float *)array->data)[i] = ch_half_value(half);
  }
  for (size_t i = 0; i < h->count && array->type == CH_NPY_FLOAT32 && !widens; i++) {
    double value;
    memcpy(&value, h->elements + 8 * i, 8);
    ((float *)array->data)[i] = (float)value;
    if (isfinite(value) && !isfinite((float)value))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: element %zu is %g: too large for float32", h->name, i, value);
  }
  for (size_t i = 0; i < h->count && array->type == CH_NPY_INT32; i++) {
    int64_t value;
    memcpy(&value, h->elements + 8 * i, 8);
    ((int32_t *)array->data)[i] = (int32_t)value;
    if (value < INT32_MIN || value > INT32_MAX)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: element %zu is %" PRId64 ": out of range of int32", h->name, i, value);
  }
  return CHOIR_OK;
}

static int read_elements(const npy_header *h, ch_npy *array) {
  size_t bytes = h->count * types[array->type].size;
  CH_TRY(ch_alloc(&array->data, bytes, 1, "the elements of %s", h->name));
  if (h->array.type != array->type) return convert(h, array);
  memcpy(array->data, h->elements, bytes);
  return CHOIR_OK;
}

static int check_wanted(const npy_header *h, ch_npy_type as, int dims) {
  ch_npy_type type = h->array.type;
  int converts = ((type == CH_NPY_FLOAT64 || (int)type == FLOAT16) && as == CH_NPY_FLOAT32) ||
                 (type == CH_NPY_INT64 && as == CH_NPY_INT32);
  if (type != as && !converts)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: its elements are %s: %s is wanted", h->name, types[type].name,
                    types[as].name);
  if (dims && h->array.dims != dims)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: it has %d dimensions: %d are wanted", h->name, h->array.dims, dims);
  return CHOIR_OK;
}

/* Converts elements from Fortran order (first index fastest) to C order (last index fastest). */
static char *reordered(const npy_header *h) {
  size_t size = types[h->array.type].size, index[MAX_DIMS] = {0};
  char *elements = malloc(h->count * size + 1);
  for (size_t i = 0; elements && i < h->count; i++) {
    size_t at = 0, stride = 1;
    for (int d = 0; d < h->array.dims; d++) at += index[d] * stride, stride *= (size_t)h->array.shape[d];
    memcpy(elements + i * size, h->elements + at * size, size);
    for (int d = h->array.dims - 1; d >= 0 && ++index[d] == (size_t)h->array.shape[d]; d--) index[d] = 0;
  }
  return elements;
}

int ch_npy_parse(const void *data, size_t size, const char *name, ch_npy_type as, int dims, ch_npy *array) {
  npy_header h = {.name = name};
  *array = (ch_npy){0};
  CH_TRY(find_header(&h, data, size));
  if (!take_header(&h.text, &h)) return ch_error(CHOIR_ERROR_FORMAT, "%s: malformed .npy header", name);
  CH_TRY(find_type(&h));
  CH_TRY(count_elements(&h));
  CH_TRY(check_wanted(&h, as, dims));
  *array = h.array;
  array->type = as;
  char *turned = h.fortran && h.array.dims > 1 ? reordered(&h) : NULL;
  if (turned) h.elements = turned;
  int code = h.fortran && h.array.dims > 1 && !turned
                 ? ch_error(CHOIR_ERROR_MEMORY, "%s: not enough memory for %zu bytes", name, h.element_bytes)
                 : read_elements(&h, array);
  free(turned);
  if (code) ch_npy_free(array);
  return code;
}

int ch_npy_read(const char *path, ch_npy_type as, int dims, ch_npy *array) {
  const void *map;
  size_t bytes;
  *array = (ch_npy){0};
  CH_TRY(ch_file_map(path, &map, &bytes));
  int code = ch_npy_parse(map, bytes, path, as, dims, array);
  ch_file_unmap(map, bytes);
  return code;
}

void ch_npy_free(ch_npy *array) {
  free(array->data);
  array->data = NULL;
}

/* ---- writing ---- */

/* Writes magic, version 1, length and dict, padded so that the elements begin at a multiple of 64. Returns the size. */
static size_t make_header(const ch_npy *array, char *text, size_t size) {
  size_t begin = MAGIC + 4, used = begin;
  memcpy(text, magic, MAGIC);
  used += (size_t)snprintf(text + used, size - used, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                           types[array->type].descr);
  for (int i = 0; i < array->dims; i++)
    used += (size_t)snprintf(text + used, size - used, i ? " %" PRId64 "," : "%" PRId64 ",", array->shape[i]);
  used += (size_t)snprintf(text + used, size - used, "), }");
  size_t bytes = (used + 1 + 63) / 64 * 64;
  memset(text + used, ' ', bytes - used - 1);
  text[bytes - 1] = '\n';
  text[MAGIC] = 1;
  text[MAGIC + 1] = 0;
  text[MAGIC + 2] = (char)((bytes - begin) & 255);
  text[MAGIC + 3] = (char)((bytes - begin) >> 8);
  return bytes;
}

int ch_npy_write(const char *path, const ch_npy *array) {
  char header[512]; /* 8 dimensions of 20 digits fit */
  ch_file file;
  int fits = (int)array->type >= 0 && (int)array->type < WRITTEN && array->dims >= 0 && array->dims <= MAX_DIMS;
  size_t bytes = fits ? types[array->type].size : 0;
  for (int i = 0; fits && i < array->dims; i++)
    fits = array->shape[i] >= 0 && !__builtin_mul_overflow(bytes, (size_t)array->shape[i], &bytes);
  if (!fits || (bytes && !array->data))
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s: impossible type, shape or data (%d dimensions)", path, array->dims);
  size_t header_bytes = make_header(array, header, sizeof header);
  CH_TRY(ch_file_begin(&file, path));
  file.needed = header_bytes + bytes;
  ch_file_write(&file, header, header_bytes);
  ch_file_write(&file, array->data, bytes);
  return ch_file_commit(&file);
}
