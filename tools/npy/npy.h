/* NumPy .npy files (versions 1 and 2, little endian). */
#ifndef CH_NPY_NPY_H
#define CH_NPY_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"

typedef enum { CH_NPY_FLOAT32, CH_NPY_FLOAT64, CH_NPY_INT32, CH_NPY_INT64, CH_NPY_UINT8 } ch_npy_type;

typedef struct ch_npy {
  ch_npy_type type;
  int dims; /* at most 8 */
  int64_t shape[8];
  void *data; /* malloc'd; ch_npy_free */
} ch_npy;

/* Reads a whole file, into C order. float64 is narrowed, float16 widened and int64 range-checked if `as` is the
 * 32-bit type; any other mismatch is CHOIR_ERROR_FORMAT, naming the file, the stored type and the expected one. dims:
 * the expected rank, or 0: any. CHOIR_ERROR_UNSUPPORTED: other element types. */
int ch_npy_read(const char *path, ch_npy_type as, int dims, ch_npy *array);

/* Writes atomically (temporary file, then rename). CHOIR_ERROR_ARGUMENT: type or shape; CHOIR_ERROR_IO. */
int ch_npy_write(const char *path, const ch_npy *array);
void ch_npy_free(ch_npy *array);

/* ch_npy_read on the bytes of a file; `name` starts every message. */
int ch_npy_parse(const void *data, size_t size, const char *name, ch_npy_type as, int dims, ch_npy *array);

/* Reads float32 of one or two dimensions from a .npy file or a text file: one row per line, with commas, tabs or
 * spaces between numbers. CHOIR_ERROR_FORMAT names the line. */
int ch_npy_read_table(const char *path, int dims, ch_npy *array);

/* Does the same for a text of `size` bytes, followed by a NUL. */
int ch_npy_parse_table(const char *text, size_t size, const char *name, int dims, ch_npy *array);

#endif
