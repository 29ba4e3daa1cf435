/* Options of a call, whose struct says its size: programs that were built with other versions have it shorter or
 * longer.
 */
#ifndef CH_BASE_OPTIONS_H
#define CH_BASE_OPTIONS_H

#include <stddef.h>

#include "base/error.h"

/* Reads the caller's struct, which begins with its size, into one of this version, which has the defaults: they stay
 * where `given` is NULL. What it lacks is 0, which means what was before; what it has beyond must be 0, since this
 * version would overlook it: else CHOIR_ERROR_UNSUPPORTED. CHOIR_ERROR_ARGUMENT: a size that no struct has, since
 * nobody initialised it. */
int ch_options_read(void *copy, size_t size, const void *given, const char *name);

/* The defaults of this version in a caller's struct of `size` bytes; nothing where that is no size of a struct. */
void ch_options_default(void *given, size_t size, const void *defaults, size_t own_size);

/* Declares `own`, with what `given` says; NULL: the defaults, which are `init`. */
#define CH_OPTIONS(type, copy, given, init) \
  type copy = init;                         \
  CH_TRY(ch_options_read(&copy, sizeof copy, given, #type))

#endif
