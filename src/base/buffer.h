/* A growing array of bytes. */
#ifndef CH_BASE_BUFFER_H
#define CH_BASE_BUFFER_H

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

typedef struct ch_buffer {
  char *data; /* free() it */
  size_t size, capacity;
} ch_buffer;

/* Ensures capacity for `more` bytes after `size`. Doubles the capacity, so appending takes amortized constant time. */
static inline int ch_buffer_reserve(ch_buffer *b, size_t more) {
  if (b->size + more <= b->capacity) return CHOIR_OK;
  size_t capacity = b->capacity * 2 > b->size + more ? b->capacity * 2 : b->size + more;
  CH_TRY(CH_RESIZE(&b->data, capacity, "a text buffer"));
  b->capacity = capacity;
  return CHOIR_OK;
}

static inline int ch_buffer_append(ch_buffer *b, const void *data, size_t size) {
  CH_TRY(ch_buffer_reserve(b, size + 1)); /* never NULL afterwards, even if size is 0 */
  if (size) memcpy(b->data + b->size, data, size);
  b->size += size;
  return CHOIR_OK;
}

#endif
