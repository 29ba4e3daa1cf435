/* Inputs as files, for parsers that take a path. */
#ifndef CH_FUZZ_INPUT_H
#define CH_FUZZ_INPUT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* A file in memory that holds the input; its name is valid until the next call. */
static inline const char *input_file(const uint8_t *data, size_t size) {
  static int fd = -1;
  static char path[64];
  if (fd < 0) fd = memfd_create("input", 0);
  if (fd < 0 || ftruncate(fd, 0) || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return path;
}

#endif
