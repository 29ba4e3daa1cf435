/* Reads GGUF files, whose lengths are all checked. Tensors are presented like those of a safetensors file, with
 * blocks of Q8_0 as bytes. */
#ifndef CH_EXPORT_GGUF_READ_H
#define CH_EXPORT_GGUF_READ_H

#include <jansson.h>

#include "export/gguf.h"
#include "file/tensors.h"

/* Texts are stored one after the other, each preceded by its length; numbers and flags one after the other. */
typedef struct ch_gguf_array {
  char key[128];
  ch_gguf_value of;
  uint64_t count;
  const char *at;
} ch_gguf_array;

typedef struct ch_gguf_in {
  choir_tensors *tensors; /* F32, F16, BF16; Q8_0 as U8, whose rows have 34 bytes for 32 values */
  json_t *keys;           /* numbers, flags and texts by key */
  ch_gguf_array *array;
  int arrays;
} ch_gguf_in;

/* CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT; CHOIR_ERROR_UNSUPPORTED names a tensor of another type. */
int ch_gguf_open(const char *path, ch_gguf_in *in);
void ch_gguf_close_in(ch_gguf_in *in);

/* Reads a file in memory, which must stay valid; for fuzzing. */
int ch_gguf_parse(const void *data, size_t size, const char *name, ch_gguf_in *in);

/* The array of key `key` if its elements have type `of`; otherwise NULL. */
const ch_gguf_array *ch_gguf_find_array(const ch_gguf_in *in, const char *key, ch_gguf_value of);

/* The text at *at, which is advanced to the next. */
const char *ch_gguf_next_text(const char **at, size_t *size);

/* The model's keys as a config.json; free *root. CHOIR_ERROR_UNSUPPORTED, CHOIR_ERROR_FORMAT name the key. */
int ch_gguf_config(const ch_gguf_in *in, const char *name, json_t **root);

/* Appends the vocabulary to *model as a tokenizer file; for byte-level BPE, a tokenizer.json.
 * CHOIR_ERROR_UNSUPPORTED: another kind. */
int ch_gguf_tokenizer(const ch_gguf_in *in, const char *name, ch_buffer *model);

/* Nonzero: the file begins like a GGUF file. */
int ch_gguf_is(const char *path);

#endif
