/* How far a long call is: what every `progress` callback is told. */
#ifndef CHOIR_PROGRESS_H
#define CHOIR_PROGRESS_H

#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* Made by the library alone; may grow at its end. A field that the call does not count is 0. */
typedef struct choir_progress {
  int64_t done, total; /* in `unit`; total 0: not known yet, as while a long text is being encoded */
  const char *unit;    /* "bytes" of input, compressed ones as they are; "sequences", "requests", "texts", "gaps"; NULL:
                          the call only has `text` */
  const char *text;    /* a line for people, or NULL */
  double seconds;      /* since the call began */
  int64_t text_bytes, tokens, documents; /* choir_data_build: written so far */
  int64_t replaced;                      /* choir_data_build: bytes that were not UTF-8 (replace_invalid) */
} choir_progress;

/* Nonzero stops the call: CHOIR_ERROR_INTERRUPTED. */
typedef int (*choir_progress_callback)(void *context, const choir_progress *progress);

CHOIR_C_END
#endif
