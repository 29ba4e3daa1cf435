/* NumPy .npy files (versions 1 and 2, little endian). */
#ifndef CHOIR_NPY_H
#define CHOIR_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { CHOIR_NPY_FLOAT32, CHOIR_NPY_FLOAT64, CHOIR_NPY_INT32, CHOIR_NPY_INT64, CHOIR_NPY_UINT8 } choir_npy_type;

typedef struct choir_npy {
  choir_npy_type type;
  int dims; /* at most 8 */
  int64_t shape[8];
  void *data; /* malloc'd; choir_npy_free */
  int64_t reserved[4];
} choir_npy;

/* Reads a whole file, into C order. float64 is narrowed, float16 widened and int64 range-checked when `as` asks for the
 * 32-bit type; any other mismatch is CHOIR_ERROR_FORMAT, naming the file, what it has and what was wanted. dims: the
 * rank wanted, or 0: any. CHOIR_ERROR_UNSUPPORTED: other element types. */
CHOIR_API int choir_npy_read(const char *path, choir_npy_type as, int dims, choir_npy *array);

/* Writes atomically (beside, then renamed). CHOIR_ERROR_ARGUMENT: type or shape; CHOIR_ERROR_IO. */
CHOIR_API int choir_npy_write(const char *path, const choir_npy *array);
CHOIR_API void choir_npy_free(choir_npy *array);

#ifdef __cplusplus
}
#endif
#endif
