/* Inputs as files, for parsers that take a path; what every tokenizer must do. */
#ifndef CH_FUZZ_INPUT_H
#define CH_FUZZ_INPUT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "choir/tokenizer.h"

/* A file in memory that holds the input; its name is valid until the next call. */
static inline const char *input_file(const uint8_t *data, size_t size) {
  static int fd = -1;
  static char path[64];
  if (fd < 0) fd = memfd_create("input", 0);
  if (fd < 0 || ftruncate(fd, 0) || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return path;
}

/* A tokenizer gives back the text, or says that it cannot. Frees it. */
static inline void input_tokenizer(choir_tokenizer *t, const char *text, size_t size) {
  int32_t *ids;
  char *back;
  size_t count, length;
  for (int i = 0; i < choir_tokenizer_vocab_size(t); i++)
    if (!choir_tokenizer_piece(t, i)) abort();
  if (!choir_tokenizer_encode(t, text, size, &ids, &count)) {
    if (choir_tokenizer_decode(t, ids, count, &back, &length)) abort();
    if (length != size || memcmp(text, back, length)) abort();
    free(back);
    free(ids);
  }
  choir_tokenizer_free(t);
}

#endif
