/* A text file as tokens, or the beginning of one. */
#ifndef CH_DATA_TEXT_TOKENS_H
#define CH_DATA_TEXT_TOKENS_H

#include "choir/tokenizer.h"

typedef struct ch_text_tokens {
  int32_t *ids; /* free() it */
  size_t count;
  size_t bytes; /* of text that they stand for */
  int cut;      /* there was more */
  size_t gzip;  /* bytes that gzip makes of the text; 0: it is cut, or there is no memory */
} ch_text_tokens;

/* At most `most` tokens (0: all). Of a long file no more is read than they can need. tokenizer NULL is refused. `stop`
 * (or NULL): nonzero ends it, CHOIR_ERROR_INTERRUPTED. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT,
 * CHOIR_ERROR_MEMORY. */
int ch_text_tokens_read(const choir_tokenizer *tokenizer, const char *path, size_t most, int (*stop)(void *context),
                        void *context, ch_text_tokens *text);

#endif
