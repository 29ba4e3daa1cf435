/* The fields that option structs keep for later versions (choir.h). */
#ifndef CH_BASE_RESERVED_H
#define CH_BASE_RESERVED_H

#include <stdint.h>

/* CHOIR_ERROR_UNSUPPORTED, naming the struct, where one is not 0: a field of a later version, which this one would
 * overlook, or a struct that nobody initialised. */
int ch_reserved_check(const int64_t *words, int count, const char *name);

#define CH_CHECK_RESERVED(options, name) \
  CH_TRY(ch_reserved_check((options)->reserved, (int)(sizeof(options)->reserved / sizeof *(options)->reserved), name))

#endif
