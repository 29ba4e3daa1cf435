/* Writes GGUF files, llama.cpp's format, version 3: keys, then descriptions of tensors, then their data. */
#ifndef CH_EXPORT_GGUF_H
#define CH_EXPORT_GGUF_H

#include <stdint.h>

#include "base/buffer.h"
#include "choir/tokenizer.h"
#include "export/imported.h"
#include "file/file.h"

typedef enum { CH_GGUF_U32 = 4, CH_GGUF_I32 = 5, CH_GGUF_F32 = 6, CH_GGUF_BOOL = 7, CH_GGUF_TEXT = 8 } ch_gguf_value;

/* A file being written. Errors are remembered and returned by ch_gguf_start. Initialize with zeros. */
typedef struct ch_gguf {
  ch_buffer keys, tensors;
  uint64_t key_count, tensor_count, data_bytes; /* data_bytes: offset of the next tensor */
  int error, open;
  ch_file file;
} ch_gguf;

void ch_gguf_put_text(ch_gguf *g, const char *key, const char *text);
void ch_gguf_put_u32(ch_gguf *g, const char *key, uint32_t value);
void ch_gguf_put_f32(ch_gguf *g, const char *key, float value);
void ch_gguf_put_flag(ch_gguf *g, const char *key, int value);

/* Begins an array of `count` values, which are added one by one: four bytes each, or text. */
void ch_gguf_put_array(ch_gguf *g, const char *key, ch_gguf_value of, uint64_t count);
void ch_gguf_add(ch_gguf *g, const void *four_bytes);
void ch_gguf_add_text(ch_gguf *g, const char *text, size_t size);

/* Writes the vocabulary's keys, with the tokens that an imported model's authors put before texts; `mask`: with an
 * additional mask token at the end. CHOIR_ERROR_UNSUPPORTED: no tokenizer is given (NULL), or llama.cpp would produce
 * other tokens. */
int ch_gguf_put_tokenizer(ch_gguf *g, const choir_tokenizer *tokenizer, int mask, const ch_imported *imported);

/* Adds a tensor: its shape with the slowest dimension first (GGUF stores it last), ggml's number of its type, and
 * its size in bytes. */
void ch_gguf_add_tensor(ch_gguf *g, const char *name, int dims, const int64_t *shape, uint32_t type, uint64_t bytes);

/* Opens the file and writes everything added so far. The tensors' bytes follow in order, in chunks of any size;
 * ch_gguf_end_tensor ends each tensor. ch_gguf_close commits the file, or discards it if `code` is an error, and frees
 * all memory; it returns the first error. */
int ch_gguf_start(ch_gguf *g, const char *path);
void ch_gguf_write(ch_gguf *g, const void *data, size_t bytes);
void ch_gguf_end_tensor(ch_gguf *g);
int ch_gguf_close(ch_gguf *g, int code);

#endif
