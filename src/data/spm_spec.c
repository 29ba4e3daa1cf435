#include "data/spm_spec.h"

#include <stdint.h>

/* A protocol buffer: fields of a number and a type, one behind the other. */
typedef struct reader {
  const unsigned char *at, *end;
  int whole; /* so far: 0, something is no field, or ends too early */
} reader;

typedef struct field {
  uint64_t number, value; /* value: of a number; length of bytes */
  reader bytes;           /* of a string or a message; empty otherwise */
} field;

/* 0: the bytes end in the middle. */
static int read_varint(reader *r, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64 && r->at < r->end; shift += 7) {
    unsigned char c = *r->at++;
    *value |= (uint64_t)(c & 0x7F) << shift;
    if (c < 0x80) return 1;
  }
  return 0;
}

/* The next field; what is none clears `whole`. */
static int next_field(reader *r, field *f) {
  uint64_t tag = 0;
  *f = (field){0};
  if (r->at == r->end) return 0;
  r->whole = 0;
  if (!read_varint(r, &tag)) return 0;
  f->number = tag >> 3;
  int type = (int)(tag & 7);
  if (type == 0) return r->whole = read_varint(r, &f->value);
  if (type == 1) f->value = 8;
  if (type == 5) f->value = 4;
  if ((type != 1 && type != 2 && type != 5) || (type == 2 && !read_varint(r, &f->value))) return 0;
  if (f->value > (uint64_t)(r->end - r->at)) return 0;
  f->bytes = (reader){r->at, r->at + f->value, 1};
  r->at += f->value;
  return r->whole = 1;
}

/* The settings that matter, with the defaults of sentencepiece_model.proto. A message that comes twice is merged. */
typedef struct spec {
  uint64_t pieces, map_bytes, denormalizer_bytes, dummy_prefix, remove_spaces, escape_spaces, space_as_suffix,
      byte_fallback;
} spec;

static int read_normalizer(reader r, uint64_t *map_bytes, spec *s) {
  for (field f; next_field(&r, &f);) {
    if (f.number == 2 && f.value > *map_bytes) *map_bytes = f.value;
    if (s && f.number == 3) s->dummy_prefix = f.value;
    if (s && f.number == 4) s->remove_spaces = f.value;
    if (s && f.number == 5) s->escape_spaces = f.value;
  }
  return r.whole;
}

static int read_trainer(reader r, spec *s) {
  for (field f; next_field(&r, &f);) {
    if (f.number == 24) s->space_as_suffix = f.value;
    if (f.number == 35) s->byte_fallback = f.value;
  }
  return r.whole;
}

static int read_model(reader r, spec *s) {
  int whole = 1;
  for (field f; next_field(&r, &f);) {
    s->pieces += f.number == 1;
    if (f.number == 2) whole &= read_trainer(f.bytes, s);
    if (f.number == 3) whole &= read_normalizer(f.bytes, &s->map_bytes, s);
    if (f.number == 5) whole &= read_normalizer(f.bytes, &s->denormalizer_bytes, NULL);
  }
  return whole && r.whole && s->pieces;
}

static int refuse(const char *what) {
  return ch_error(CHOIR_ERROR_FORMAT, "the model changes text (%s); choir needs one that does not", what);
}

int ch_spm_spec_check(const void *bytes, size_t size) {
  spec s = {.dummy_prefix = 1, .remove_spaces = 1, .escape_spaces = 1};
  if (!read_model((reader){bytes, (const unsigned char *)bytes + size, 1}, &s))
    return ch_error(CHOIR_ERROR_FORMAT, "not a SentencePiece model, or a damaged one");
  if (s.map_bytes) return refuse("it has a normalization map");
  if (s.denormalizer_bytes) return refuse("it has a map for decoding");
  if (s.dummy_prefix) return refuse("it puts a space in front: add_dummy_prefix");
  if (s.remove_spaces) return refuse("it removes spaces: remove_extra_whitespaces");
  if (!s.escape_spaces) return refuse("it leaves spaces as they are: escape_whitespaces is off");
  if (s.space_as_suffix) return refuse("spaces end words: treat_whitespace_as_suffix");
  if (!s.byte_fallback) return ch_error(CHOIR_ERROR_FORMAT, "the model has no byte fallback: some text has no tokens");
  return CHOIR_OK;
}
