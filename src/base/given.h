/* Checks the pointers that a caller of a public function must not leave out: CH_GIVEN(path, model) is CHOIR_OK, or an
 * error that names the function and the first of these pointers that is NULL. */
#ifndef CH_BASE_GIVEN_H
#define CH_BASE_GIVEN_H

#include <stdint.h>

#include "base/error.h"

#define CH_GIVEN(...)                                                  \
  ch_given(__func__, #__VA_ARGS__, (const void *const[]){__VA_ARGS__}, \
           (int)(sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *)))

int ch_given(const char *function, const char *names, const void *const *pointer, int count);

/* Checks the fields that option structs keep for later versions (choir.h). CHOIR_ERROR_UNSUPPORTED, naming the struct,
 * where one is not 0: a field of a later version, which this one would
 * overlook, or a struct that nobody initialised. */
int ch_reserved_check(const int64_t *words, int count, const char *name);

#define CH_CHECK_RESERVED(options, name) \
  CH_TRY(ch_reserved_check((options)->reserved, (int)(sizeof(options)->reserved / sizeof *(options)->reserved), name))

#endif
