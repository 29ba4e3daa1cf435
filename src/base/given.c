#include "base/given.h"

#include <string.h>

#include "choir/version.h"

int ch_given(const char *function, const char *names, const void *const *pointer, int count) {
  for (int i = 0; i < count; i++) {
    if (!pointer[i])
      return ch_error(CHOIR_ERROR_ARGUMENT, "%s: %.*s is NULL", function, (int)strcspn(names, ","), names);
    names += strcspn(names, ",") + 2;
  }
  return CHOIR_OK;
}

int ch_reserved_check(const int64_t *words, int count, const char *name) {
  for (int i = 0; i < count; i++)
    if (words[i])
      return ch_error(
          CHOIR_ERROR_UNSUPPORTED,
          "%s: what is reserved is not 0: the struct was not initialised, or sets a field that this libchoir "
          "(%s) does not know yet; initialise it, or install a later libchoir",
          name, CHOIR_VERSION);
  return CHOIR_OK;
}
