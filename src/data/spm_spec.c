#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/spm.h"

/* A reader of protocol buffers: a sequence of fields, each with a number and a type. */
typedef struct spec_reader {
  const unsigned char *at, *end;
  int whole; /* 0: an invalid or truncated field was found */
} spec_reader;

typedef struct field {
  uint64_t number, value; /* value: an integer, or the length of bytes */
  spec_reader bytes;      /* content of a string or a message; empty otherwise */
} field;

/* 0: the bytes end within the number. */
static int read_varint(spec_reader *r, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64 && r->at < r->end; shift += 7) {
    unsigned char c = *r->at++;
    *value |= (uint64_t)(c & 0x7F) << shift;
    if (c < 0x80) return 1;
  }
  return 0;
}

/* Reads the next field; an invalid field clears `whole`. */
static int next_field(spec_reader *r, field *f) {
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
  f->bytes = (spec_reader){r->at, r->at + f->value, 1};
  r->at += f->value;
  return r->whole = 1;
}

/* The relevant settings, with the defaults of sentencepiece_model.proto. A repeated message is merged. */
typedef struct spec {
  uint64_t pieces, map_bytes, denormalizer_bytes, add_space, escape_spaces, type, space_as_suffix, byte_fallback;
  spec_reader rule; /* name of the normalization rule */
} spec;

enum { WORD = 3 }; /* TrainerSpec.model_type */

static int read_normalizer(spec_reader r, uint64_t *map_bytes, spec *s) {
  for (field f; next_field(&r, &f);) {
    if (s && f.number == 1) s->rule = f.bytes;
    if (f.number == 2 && f.value > *map_bytes) *map_bytes = f.value;
    if (s && f.number == 3) s->add_space = f.value;
    if (s && f.number == 5) s->escape_spaces = f.value;
  }
  return r.whole;
}

static int read_trainer(spec_reader r, spec *s) {
  for (field f; next_field(&r, &f);) {
    if (f.number == 3) s->type = f.value;
    if (f.number == 24) s->space_as_suffix = f.value;
    if (f.number == 35) s->byte_fallback = f.value;
  }
  return r.whole;
}

static int read_model(spec_reader r, spec *s) {
  int whole = 1;
  for (field f; next_field(&r, &f);) {
    s->pieces += f.number == 1;
    if (f.number == 2) whole &= read_trainer(f.bytes, s);
    if (f.number == 3) whole &= read_normalizer(f.bytes, &s->map_bytes, s);
    if (f.number == 5) whole &= read_normalizer(f.bytes, &s->denormalizer_bytes, NULL);
  }
  return whole && r.whole && s->pieces;
}

/* Advice for users of SentencePiece's own trainer: with these options no text is changed or lost. */
#define ADVICE \
  "train it with --normalization_rule_name=identity --byte_fallback=true, or make one by choir tokenizer train"

int ch_spm_spec_check(const void *bytes, size_t size) {
  spec s = {.escape_spaces = 1};
  if (!read_model((spec_reader){bytes, (const unsigned char *)bytes + size, 1}, &s))
    return ch_error(CHOIR_ERROR_FORMAT, "not a SentencePiece model, or a damaged one");
  int shown = s.rule.end - s.rule.at < 40 ? (int)(s.rule.end - s.rule.at) : 40;
  if (s.map_bytes)
    return ch_error(
        CHOIR_ERROR_FORMAT,
        "normalizer_spec.name is \"%.*s\": the model changes text by a normalization map of %llu bytes; " ADVICE, shown,
        (const char *)s.rule.at, (unsigned long long)s.map_bytes);
  if (s.denormalizer_bytes)
    return ch_error(CHOIR_ERROR_FORMAT,
                    "denormalizer_spec: the model changes text by a map for decoding of %llu bytes; " ADVICE,
                    (unsigned long long)s.denormalizer_bytes);
  if (!s.escape_spaces)
    return ch_error(CHOIR_ERROR_FORMAT,
                    "normalizer_spec.escape_whitespaces is false: spaces in pieces are not marked; make one by choir "
                    "tokenizer train");
  if (s.space_as_suffix)
    return ch_error(
        CHOIR_ERROR_FORMAT,
        "trainer_spec.treat_whitespace_as_suffix is true: spaces end words, and choir's begin them; train it without");
  if (s.type == WORD)
    return ch_error(CHOIR_ERROR_FORMAT,
                    "trainer_spec.model_type is word: what is not in its list is no word; use unigram, bpe or char");
  if (!s.byte_fallback)
    return ch_error(CHOIR_ERROR_FORMAT, "trainer_spec.byte_fallback is false: some text has no tokens; " ADVICE);
  return CHOIR_OK;
}

ch_spm_type ch_spm_spec_type(const void *bytes, size_t size) {
  spec s = {.type = CH_SPM_UNIGRAM};
  read_model((spec_reader){bytes, (const unsigned char *)bytes + size, 1}, &s);
  return (ch_spm_type)s.type;
}

int ch_spm_spec_adds_space(const void *bytes, size_t size) {
  spec s = {.add_space = 1};
  return read_model((spec_reader){bytes, (const unsigned char *)bytes + size, 1}, &s) && s.add_space;
}

/* A field of the file that a copy omits: samples encoded with the settings that change. */
enum { SELF_TEST = 4 };

void *ch_spm_spec_keep_spaces(const void *bytes, size_t size, size_t *kept) {
  /* normalizer_spec { add_dummy_prefix: false, remove_extra_whitespaces: false } */
  static const char settings[] = {0x1A, 4, 0x18, 0, 0x20, 0};
  char *copy = malloc(size + sizeof settings);
  spec_reader r = {bytes, (const unsigned char *)bytes + size, 1};
  *kept = 0;
  if (!copy) return NULL;
  field f;
  for (const unsigned char *begin = r.at; next_field(&r, &f); begin = r.at) {
    if (f.number == SELF_TEST) continue;
    memcpy(copy + *kept, begin, (size_t)(r.at - begin));
    *kept += (size_t)(r.at - begin);
  }
  memcpy(copy + *kept, settings, sizeof settings);
  *kept += sizeof settings;
  return copy;
}
