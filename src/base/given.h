/* Checks the pointers that a caller of a public function must not leave out: CH_GIVEN(path, model) is CHOIR_OK, or an
 * error that names the function and the first of these pointers that is NULL. */
#ifndef CH_BASE_GIVEN_H
#define CH_BASE_GIVEN_H

#include "base/error.h"

#define CH_GIVEN(...)                                                  \
  ch_given(__func__, #__VA_ARGS__, (const void *const[]){__VA_ARGS__}, \
           (int)(sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *)))

int ch_given(const char *function, const char *names, const void *const *pointer, int count);

#endif
