/* For tests of a file format: one scratch file, and refusals whose message says what is wrong. */
#ifndef CH_TESTS_ONE_FILE_H
#define CH_TESTS_ONE_FILE_H

#include <unistd.h>

#include "testing.h"

static char path[64];

static inline int make_path(void **state) {
  (void)state;
  strcpy(path, "/tmp/choir-file-XXXXXX");
  int fd = mkstemp(path);
  return fd < 0 || close(fd);
}

static inline int drop_path(void **state) {
  (void)state;
  return unlink(path);
}

static inline void refused_at(int code, const char *part, const char *file, int line) {
  if (code && strstr(choir_error_message(), part)) return;
  fprintf(stderr, "%s:%d: '%s' is not in '%s' (code %d)\n", file, line, part, choir_error_message(), code);
  _fail(file, line);
}
#define refused(code, part) refused_at((code), (part), __FILE__, __LINE__)

#endif
