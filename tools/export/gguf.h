/* Writes GGUF files, llama.cpp's format, version 3: keys first, then what tensors there are, then their data. */
#ifndef CH_EXPORT_GGUF_H
#define CH_EXPORT_GGUF_H

#include <stdint.h>

#include "base/buffer.h"
#include "choir/tokenizer.h"
#include "export/imported.h"
#include "file/file.h"

typedef enum { CH_GGUF_U32 = 4, CH_GGUF_I32 = 5, CH_GGUF_F32 = 6, CH_GGUF_BOOL = 7, CH_GGUF_TEXT = 8 } ch_gguf_value;

/* A file that is being written. Errors are remembered: ch_gguf_start gives them. Zeros begin one. */
typedef struct ch_gguf {
  ch_buffer keys, tensors;
  uint64_t key_count, tensor_count, data_bytes; /* data_bytes: where the next tensor begins */
  int error, open;
  ch_file file;
} ch_gguf;

void ch_gguf_put_text(ch_gguf *g, const char *key, const char *text);
void ch_gguf_put_u32(ch_gguf *g, const char *key, uint32_t value);
void ch_gguf_put_f32(ch_gguf *g, const char *key, float value);
void ch_gguf_put_flag(ch_gguf *g, const char *key, int value);

/* An array of so many values, which follow one by one: four bytes each, or text. */
void ch_gguf_put_array(ch_gguf *g, const char *key, ch_gguf_value of, uint64_t count);
void ch_gguf_add(ch_gguf *g, const void *four_bytes);
void ch_gguf_add_text(ch_gguf *g, const char *text, size_t size);

/* The vocabulary's keys, with what the makers of an imported model have put in front of texts; `mask`: with one token
 * more at its end, which stands for a masked one. CHOIR_ERROR_UNSUPPORTED: no tokenizer is given (NULL), or llama.cpp
 * would find other tokens. */
int ch_gguf_put_tokenizer(ch_gguf *g, const choir_tokenizer *tokenizer, int mask, const ch_imported *imported);

/* The next tensor: its shape with the slowest dimension first (GGUF itself has it last), ggml's number of its type, and
 * how many bytes it has. */
void ch_gguf_add_tensor(ch_gguf *g, const char *name, int dims, const int64_t *shape, uint32_t type, uint64_t bytes);

/* Opens the file and writes all that was put. Then come the tensors' bytes in their order, in any pieces, each tensor
 * ended by ch_gguf_end_tensor. ch_gguf_close commits the file, or gives up where `code` is an error, and frees
 * everything; it returns the first error. */
int ch_gguf_start(ch_gguf *g, const char *path);
void ch_gguf_write(ch_gguf *g, const void *data, size_t bytes);
void ch_gguf_end_tensor(ch_gguf *g);
int ch_gguf_close(ch_gguf *g, int code);

#endif
