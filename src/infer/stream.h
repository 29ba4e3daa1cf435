/* The text of a sequence in the making: what of it may be shown already, and whether it has come to a stop. */
#ifndef CH_INFER_STREAM_H
#define CH_INFER_STREAM_H

#include "base/buffer.h"

typedef struct ch_stream_text {
  ch_buffer bytes; /* of all tokens so far */
  ch_buffer text;  /* what was shown: well-formed UTF-8 */
  size_t done;     /* bytes that are in `text` */
  int stopped;
} ch_stream_text;

/* Appends a token's bytes, then to `text` whatever is certain: whole characters that can be no part of a stop text
 * (stops: NULL-terminated, or NULL). Bytes that are no characters become U+FFFD, one each. At the first stop text,
 * `stopped` is set and the text ends before it. CHOIR_ERROR_MEMORY. */
int ch_stream_add(ch_stream_text *s, const char *bytes, size_t size, const char *const *stops);

/* No more tokens will come: shows what was held back. */
int ch_stream_end(ch_stream_text *s);

void ch_stream_free(ch_stream_text *s);

#endif
