/* Refuses NULL by the names of function and parameter. */
#include "base/given.h"

#include <string.h>

int ch_given(const char *function, const char *names, const void *const *pointer, int count) {
  for (int i = 0; i < count; i++) {
    if (!pointer[i])
      return ch_error(CHOIR_ERROR_ARGUMENT, "%s: %.*s is NULL", function, (int)strcspn(names, ","), names);
    names += strcspn(names, ",") + 2;
  }
  return CHOIR_OK;
}
