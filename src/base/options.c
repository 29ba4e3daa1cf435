#include "base/options.h"

#include <string.h>

#include "choir/version.h"

enum { MAX_STRUCT_SIZE = 1 << 16 }; /* max size of an option struct of any version */

int ch_options_read(void *copy, size_t size, const void *given, const char *name) {
  size_t given_size;
  if (!given) return CHOIR_OK;
  memcpy(&given_size, given, sizeof given_size);
  if (given_size < sizeof given_size || given_size > MAX_STRUCT_SIZE)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s.size is %zu: initialise the struct by its INIT or %s_default", name,
                    given_size, name);
  size_t both = given_size < size ? given_size : size;
  for (size_t i = both; i < given_size; i++)
    if (((const char *)given)[i])
      return ch_error(CHOIR_ERROR_UNSUPPORTED,
                      "%s: a field is set that this libchoir (%s) does not know yet: install a later one", name,
                      CHOIR_VERSION);
  memset(copy, 0, size);
  memcpy(copy, given, both);
  memcpy(copy, &size, sizeof size);
  return CHOIR_OK;
}

void ch_options_default(void *given, size_t size, const void *defaults, size_t own_size) {
  if (size > MAX_STRUCT_SIZE) return;
  memset(given, 0, size);
  memcpy(given, defaults, size < own_size ? size : own_size);
  if (size >= sizeof size) memcpy(given, &size, sizeof size);
}
