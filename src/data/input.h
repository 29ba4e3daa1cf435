/* One input file as a stream of bytes, decompressed on the way: plain, gz (dictzip too), xz, zst, bz2, told apart by
 * content. */
#ifndef CH_DATA_INPUT_H
#define CH_DATA_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct ch_input {
  const char *path;     /* the caller's */
  struct ch_gzip *gzip; /* one of the two is in use */
  struct archive *archive;
  uint64_t size; /* on disk */
  int ended;
} ch_input;

/* The file's size on disk. CHOIR_ERROR_IO: it cannot be read or is no regular file (inputs may be read twice, so a pipe
 * will not do). */
int ch_input_check(const char *path, uint64_t *bytes);

int ch_input_open(ch_input *input, const char *path);
/* The next piece, valid until the next call; size 0: the end. CHOIR_ERROR_FORMAT: damaged or truncated compressed data.
 */
int ch_input_read(ch_input *input, const void **data, size_t *size);
uint64_t ch_input_consumed(const ch_input *input); /* bytes of the file on disk read so far */
void ch_input_close(ch_input *input);

#endif
