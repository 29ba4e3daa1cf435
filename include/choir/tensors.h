/* safetensors files: named tensors in a checked, memory-mapped file. */
#ifndef CHOIR_TENSORS_H
#define CHOIR_TENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

typedef enum { CHOIR_F64, CHOIR_F32, CHOIR_BF16, CHOIR_I64, CHOIR_I32, CHOIR_U64, CHOIR_U8, CHOIR_F16 } choir_dtype;

typedef struct choir_tensor {
  char name[128];
  choir_dtype dtype;
  int dims; /* at most 4; 0: a scalar */
  int64_t shape[4];
  const void *data; /* points into the file mapping (load), or to the caller's data (write) */
  size_t bytes;
  int64_t reserved[4];
} choir_tensor;

typedef struct choir_tensors choir_tensors;

/* Opens a file, or several: if NAME.safetensors does not exist and NAME.safetensors.index.json does, the files that the
 * index names. Checks the whole header: sizes, overlaps, gaps, duplicate names, alignment, file length. If `verify` is
 * set, also reads all data and compares them with the checksum that choir writes to "__metadata__" (files without a
 * checksum pass). CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT. */
CHOIR_API int choir_tensors_load(const char *path, int verify, choir_tensors **tensors);
CHOIR_API void choir_tensors_free(choir_tensors *tensors);
CHOIR_API int choir_tensors_count(const choir_tensors *tensors);
CHOIR_API const choir_tensor *choir_tensors_at(const choir_tensors *tensors, int index);
CHOIR_API const choir_tensor *choir_tensors_find(const choir_tensors *tensors, const char *name); /* NULL: none */
/* A string of "__metadata__", or NULL. */
CHOIR_API const char *choir_tensors_metadata(const choir_tensors *tensors, const char *key);

/* Writes a file atomically, with fsync (staged, then renamed). Metadata: key, value, key, value, ..., NULL; may be
 * NULL. The data is streamed, not copied. CHOIR_ERROR_ARGUMENT: a duplicate name, or a number of bytes that does not
 * match the shape; CHOIR_ERROR_IO. */
CHOIR_API int choir_tensors_write(const char *path, const choir_tensor *tensors, int count,
                                  const char *const *metadata);

CHOIR_C_END
#endif
