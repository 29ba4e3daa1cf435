#include "base/alloc.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/format.h"

/* Stores the address at `pointer`; if it is NULL, reports what could not be allocated. */
__attribute__((format(printf, 5, 0))) static int store(void *pointer, const void *memory, size_t count, size_t size,
                                                       const char *format, va_list args) {
  char what[512];
  if (memory) {
    memcpy(pointer, &memory, sizeof memory); /* all pointers have one representation, but *pointer is not a void * */
    return CHOIR_OK;
  }
  ch_vformat(what, sizeof what, format, args);
  return ch_error(CHOIR_ERROR_MEMORY, "no memory for %s: %zu x %zu bytes", what, count, size);
}

int ch_alloc(void *pointer, size_t count, size_t size, const char *format, ...) {
  va_list args;
  memset(pointer, 0, sizeof(void *));
  va_start(args, format);
  int code = store(pointer, calloc(count ? count : 1, size), count, size, format, args);
  va_end(args);
  return code;
}

int ch_resize(void *pointer, size_t count, size_t size, const char *format, ...) {
  va_list args;
  void *before;
  memcpy(&before, pointer, sizeof before);
  va_start(args, format);
  int code = store(pointer, reallocarray(before, count ? count : 1, size), count, size, format, args);
  va_end(args);
  return code;
}
