#include "export/gguf_read.h"

#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/format.h"
#include "base/q8.h"
#include "export/names.h"

enum { U8 = 0, I8 = 1, U16 = 2, I16 = 3, ARRAY = 9, U64 = 10, I64 = 11, F64 = 12, VALUES = 13 };
enum { MIN_ENTRY = 24 }; /* minimum size of a tensor's entry in bytes */

/* Bytes of a value; texts begin with their length, arrays with a type and a number. */
static const int value_bytes[VALUES] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

typedef struct gguf_reader {
  const char *name;
  const char *begin, *at, *end;
  ch_gguf_in *in;
} gguf_reader;

static int bad(const gguf_reader *r, const char *what, const char *why) {
  return ch_error(CHOIR_ERROR_FORMAT, "%s: '%.80s': %s", r->name, what, why);
}

/* ---- bytes ---- */

static const char *take_bytes(gguf_reader *r, uint64_t bytes) {
  if (bytes > (uint64_t)(r->end - r->at)) return NULL;
  r->at += bytes;
  return r->at - bytes;
}

/* Reads an integer of 4 or 8 bytes. */
static int number(gguf_reader *r, size_t bytes, uint64_t *value) {
  const char *p = take_bytes(r, bytes);
  *value = 0;
  if (!p)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: the file ends at byte %td, within its header", r->name, r->end - r->begin);
  memcpy(value, p, bytes);
  *value = le64toh(*value);
  return CHOIR_OK;
}

static int text(gguf_reader *r, const char **p, uint64_t *size) {
  CH_TRY(number(r, 8, size));
  *p = take_bytes(r, *size);
  return *p ? CHOIR_OK
            : ch_error(CHOIR_ERROR_FORMAT, "%s: a text of %" PRIu64 " bytes reaches over the end of the file", r->name,
                       *size);
}

/* Reads the name of a key or a tensor. */
static int name_into(gguf_reader *r, char out[128]) {
  const char *p;
  uint64_t size;
  CH_TRY(text(r, &p, &size));
  if (!size || size > 127 || memchr(p, 0, size))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: byte %td: a name has 1 to 127 bytes, none of them 0", r->name,
                    p - r->begin);
  memcpy(out, p, size);
  out[size] = 0;
  return CHOIR_OK;
}

/* ---- keys ---- */

/* The shortest decimal number that the float rounds to: 1e-6, and not the float converted to double. */
static json_t *shortest(float value) {
  char digits[32];
  for (int precision = 6; precision < 10; precision++) {
    ch_format(digits, sizeof digits, "%.*g", precision, (double)value);
    if ((float)ch_number(digits, NULL) == value) break;
  }
  return json_real(ch_number(digits, NULL));
}

/* A scalar as JSON; NULL: JSON has no such value. */
static json_t *scalar(uint32_t type, const char *p) {
  uint64_t bits = 0;
  float f;
  double d;
  memcpy(&bits, p, (size_t)value_bytes[type]);
  bits = le64toh(bits);
  uint32_t low = (uint32_t)bits;
  switch (type) {
    case I8:
      return json_integer((int8_t)bits);
    case I16:
      return json_integer((int16_t)bits);
    case CH_GGUF_I32:
      return json_integer((int32_t)bits);
    case CH_GGUF_F32:
      return memcpy(&f, &low, sizeof f), shortest(f);
    case F64:
      return memcpy(&d, &bits, sizeof d), json_real(d);
    case CH_GGUF_BOOL:
      return json_boolean((int)low);
    default:
      return bits > INT64_MAX && type == U64 ? NULL : json_integer((json_int_t)bits);
  }
}

static int read_array(gguf_reader *r, const char *key) {
  ch_gguf_array a = {.count = 0};
  uint64_t of;
  CH_TRY(number(r, 4, &of));
  CH_TRY(number(r, 8, &a.count));
  if (of >= VALUES || of == ARRAY) return bad(r, key, "an array of arrays, or of an unknown type");
  if (a.count > (uint64_t)(r->end - r->at) / (uint64_t)value_bytes[of])
    return bad(r, key, "an array that reaches over the end of the file");
  snprintf(a.key, sizeof a.key, "%s", key);
  a.of = (ch_gguf_value)of, a.at = r->at;
  if (of != CH_GGUF_TEXT) take_bytes(r, a.count * (uint64_t)value_bytes[of]);
  for (uint64_t i = 0, size; of == CH_GGUF_TEXT && i < a.count; i++) {
    const char *p;
    CH_TRY(text(r, &p, &size));
  }
  CH_TRY(CH_RESIZE(&r->in->array, r->in->arrays + 1, "the keys of %s", r->name));
  r->in->array[r->in->arrays++] = a;
  return CHOIR_OK;
}

static int read_key(gguf_reader *r) {
  char key[128];
  const char *p;
  uint64_t type, size;
  CH_TRY(name_into(r, key));
  CH_TRY(number(r, 4, &type));
  if (type >= VALUES) return bad(r, key, "a value of an unknown type");
  if (json_object_get(r->in->keys, key)) return bad(r, key, "a key that is there twice");
  if (type == ARRAY) {
    CH_TRY(read_array(r, key));
    return json_object_set_new(r->in->keys, key, json_null()) ? bad(r, key, "a key that is not UTF-8") : CHOIR_OK;
  }
  json_t *value;
  if (type == CH_GGUF_TEXT) {
    CH_TRY(text(r, &p, &size));
    value = json_stringn(p, size);
  } else {
    if (!(p = take_bytes(r, (uint64_t)value_bytes[type]))) return bad(r, key, "the file ends within its value");
    value = scalar((uint32_t)type, p);
  }
  return json_object_set_new(r->in->keys, key, value)
             ? bad(r, key, "the key or its value is not UTF-8, or no finite number")
             : CHOIR_OK;
}

/* ---- tensors ---- */

static int set_type(const gguf_reader *r, choir_tensor *t, uint64_t type) {
  enum { F32 = 0, F16 = 1, Q8_0 = 8, BF16 = 30 };
  int64_t *columns = &t->shape[t->dims - 1];
  if (type != F32 && type != F16 && type != BF16 && type != Q8_0)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "%s: tensor '%s' has ggml's type %" PRIu64
                    ": choir reads F32, F16, BF16 and Q8_0; take a file of these, or convert it: llama-quantize "
                    "--allow-requantize FILE OUT Q8_0",
                    r->name, t->name, type);
  t->dtype = type == F32 ? CHOIR_F32 : type == F16 ? CHOIR_F16 : type == BF16 ? CHOIR_BF16 : CHOIR_U8;
  if (type != Q8_0) return CHOIR_OK;
  if (*columns % CH_Q8_VALUES) return bad(r, t->name, "rows of Q8_0 that are no multiple of 32");
  *columns = *columns / CH_Q8_VALUES * CH_Q8_BYTES;
  return CHOIR_OK;
}

/* Reads a tensor's entry. Its offset is relative to the end of the header, which is not known yet. */
static int read_tensor(gguf_reader *r, choir_tensor *t, uint64_t *offset) {
  uint64_t dims, size, type;
  CH_TRY(name_into(r, t->name));
  CH_TRY(number(r, 4, &dims));
  if (dims < 1 || dims > 4) return bad(r, t->name, "a tensor has 1 to 4 dimensions");
  t->dims = (int)dims;
  for (int i = t->dims; i-- > 0;) { /* GGUF stores the slowest dimension last */
    CH_TRY(number(r, 8, &size));
    if (!size || size > (uint64_t)1 << 40) return bad(r, t->name, "a dimension is 0, or of more than 2^40");
    t->shape[i] = (int64_t)size;
  }
  CH_TRY(number(r, 4, &type));
  CH_TRY(number(r, 8, offset));
  CH_TRY(set_type(r, t, type));
  return ch_tensor_bytes(t->dtype, t->dims, t->shape, &t->bytes) ? CHOIR_OK : bad(r, t->name, "its shape overflows");
}

static int by_place(const void *a, const void *b) {
  const choir_tensor *s = a, *t = b;
  return (s->data > t->data) - (s->data < t->data);
}

/* Checks that tensors begin at multiples of the alignment after the header and do not overlap. */
static int place_tensors(const gguf_reader *r, choir_tensors *t, const uint64_t *offset) {
  const json_t *key = json_object_get(r->in->keys, "general.alignment");
  uint64_t alignment = key ? (uint64_t)json_integer_value(key) : 32, head = (uint64_t)(r->at - r->begin),
           size = (uint64_t)(r->end - r->begin);
  if (alignment < 8 || alignment > 1 << 20 || alignment & (alignment - 1))
    return bad(r, "general.alignment", "must be a power of two from 8 to 2^20");
  head = (head + alignment - 1) / alignment * alignment;
  for (int i = 0; i < t->count; i++) {
    choir_tensor *x = &t->tensor[i];
    if (offset[i] % alignment) return bad(r, x->name, "its data does not stand at a multiple of general.alignment");
    if (head > size || offset[i] > size - head || x->bytes > size - head - offset[i])
      return bad(r, x->name, "its data reaches over the end of the file, which is truncated");
    x->data = r->begin + head + offset[i];
  }
  qsort(t->tensor, (size_t)t->count, sizeof *t->tensor, by_place);
  for (int i = 1; i < t->count; i++)
    if ((const char *)t->tensor[i].data < (const char *)t->tensor[i - 1].data + t->tensor[i - 1].bytes)
      return bad(r, t->tensor[i].name, "its data overlaps another tensor's");
  CH_TRY(ch_names_build(&t->names, t->count, t->tensor->name, sizeof *t->tensor));
  for (int i = 1; i < t->count; i++)
    if (!strcmp(t->names.sorted[i].text, t->names.sorted[i - 1].text))
      return bad(r, t->names.sorted[i].text, "a tensor that is there twice");
  return CHOIR_OK;
}

static int read_gguf(gguf_reader *r) {
  uint64_t version, count, keys, *offset;
  if (r->end - r->at < 4 || memcmp(take_bytes(r, 4), "GGUF", 4))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: does not begin with 'GGUF'", r->name);
  CH_TRY(number(r, 4, &version));
  if (version != 2 && version != 3)
    return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: version %" PRIu64 " of GGUF: choir reads 2 and 3, little-endian",
                    r->name, version);
  CH_TRY(number(r, 8, &count));
  CH_TRY(number(r, 8, &keys));
  for (uint64_t i = 0; i < keys; i++) CH_TRY(read_key(r));
  if (!count || count > 1 << 24 || count > (uint64_t)(r->end - r->at) / MIN_ENTRY)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %" PRIu64 " tensors are none, or more than the file has room for", r->name,
                    count);
  choir_tensors *t = r->in->tensors;
  CH_TRY(CH_ALLOC(&t->tensor, count, "the tensors of %s", r->name));
  int code = CH_ALLOC(&offset, count, "the tensors of %s", r->name);
  for (; t->count < (int)count && !code; t->count++) code = read_tensor(r, &t->tensor[t->count], &offset[t->count]);
  if (!code) code = place_tensors(r, t, offset);
  free(offset);
  return code;
}

int ch_gguf_parse(const void *data, size_t size, const char *name, ch_gguf_in *in) {
  gguf_reader r = {.name = name, .begin = data, .at = data, .end = (const char *)data + size, .in = in};
  *in = (ch_gguf_in){.tensors = calloc(1, sizeof(choir_tensors)), .keys = json_object()};
  int code = in->tensors && in->keys ? read_gguf(&r) : ch_error(CHOIR_ERROR_MEMORY, "%s: no memory", name);
  if (code) ch_gguf_close_in(in);
  return code;
}

int ch_gguf_open(const char *path, ch_gguf_in *in) {
  ch_mapped *map;
  *in = (ch_gguf_in){0};
  int code = CH_ALLOC(&map, 1, "%s", path);
  if (!code) code = ch_file_map(path, &map->at, &map->bytes);
  if (!code && (code = ch_gguf_parse(map->at, map->bytes, path, in))) ch_file_unmap(map->at, map->bytes);
  if (code) return free(map), code;
  in->tensors->map = map;
  in->tensors->maps = 1;
  return CHOIR_OK;
}

void ch_gguf_close_in(ch_gguf_in *in) {
  choir_tensors_free(in->tensors);
  json_decref(in->keys);
  free(in->array);
  *in = (ch_gguf_in){0};
}

const ch_gguf_array *ch_gguf_find_array(const ch_gguf_in *in, const char *key, ch_gguf_value of) {
  for (int i = 0; i < in->arrays; i++)
    if (!strcmp(in->array[i].key, key) && in->array[i].of == of) return &in->array[i];
  return NULL;
}

const char *ch_gguf_next_text(const char **at, size_t *size) {
  uint64_t bytes;
  memcpy(&bytes, *at, sizeof bytes);
  *size = (size_t)le64toh(bytes);
  *at += sizeof bytes + *size;
  return *at - *size;
}

int ch_gguf_is(const char *path) {
  char begin[4] = {0};
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? 0 : read(fd, begin, sizeof begin);
  if (fd >= 0) close(fd);
  return got == sizeof begin && !memcmp(begin, "GGUF", sizeof begin);
}
