/* A sample of a text of unknown length, spread evenly over it, in bounded memory. */
#ifndef CH_DATA_SAMPLE_H
#define CH_DATA_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct ch_sample_block {
  uint64_t number, key;
  char *text;
  size_t size;
} ch_sample_block;

typedef struct ch_sample {
  size_t limit; /* bytes to keep */
  size_t bytes; /* bytes kept now */
  uint64_t seen;
  ch_sample_block *blocks;
  size_t count, capacity;
} ch_sample;

int ch_sample_add(ch_sample *sample, const char *text, size_t size);
/* Reduces the sample to the limit and sorts it by position in the text. */
void ch_sample_finish(ch_sample *sample);
void ch_sample_free(ch_sample *sample);

#endif
