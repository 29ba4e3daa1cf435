/* Option structs of calls. A struct begins with its size, which may be smaller or larger in programs built with another
 * version. */
#ifndef CH_BASE_OPTIONS_H
#define CH_BASE_OPTIONS_H

#include <stddef.h>

#include "base/error.h"

/* Copies the caller's struct `given` (NULL: keeps the defaults) to `copy`, which is of this version. Fields that the
 * caller's version lacks become 0, which means the behavior of that version. Bytes beyond this version must be 0,
 * because they would be ignored; otherwise CHOIR_ERROR_UNSUPPORTED. CHOIR_ERROR_ARGUMENT: an impossible size, i.e. an
 * uninitialized struct. */
int ch_options_read(void *copy, size_t size, const void *given, const char *name);

/* Writes this version's defaults to a caller's struct of `size` bytes; no effect if the size is impossible. */
void ch_options_default(void *given, size_t size, const void *defaults, size_t own_size);

/* Declares `copy`, initialized with the defaults `init`, and reads `given` (NULL: defaults) into it. */
#define CH_OPTIONS(type, copy, given, init) \
  type copy = init;                         \
  CH_TRY(ch_options_read(&copy, sizeof copy, given, #type))

#endif
