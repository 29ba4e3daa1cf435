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
  const void *data; /* in the mapping when read; the caller's when written */
  size_t bytes;
  int64_t reserved[4];
} choir_tensor;

typedef struct choir_tensors choir_tensors;

/* Opens a file, or several: if NAME.safetensors does not exist and NAME.safetensors.index.json does, the files that the
 * index names. Checks the whole header: sizes, overlaps, gaps, duplicate names, alignment, file length; `verify` also
 * reads all data and compares it with the checksum that choir writes in
 * "__metadata__" (files of other tools have none and pass). CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT. */
CHOIR_API int choir_tensors_load(const char *path, int verify, choir_tensors **tensors);
CHOIR_API void choir_tensors_free(choir_tensors *tensors);
CHOIR_API int choir_tensors_count(const choir_tensors *tensors);
CHOIR_API const choir_tensor *choir_tensors_at(const choir_tensors *tensors, int index);
CHOIR_API const choir_tensor *choir_tensors_find(const choir_tensors *tensors, const char *name); /* NULL: none */
/* A string of "__metadata__", or NULL. */
CHOIR_API const char *choir_tensors_metadata(const choir_tensors *tensors, const char *key);

/* Writes a file atomically, with fsync (staged, then renamed). Metadata: key, value, key, value, ..., NULL; may be
 * NULL. The data is streamed, not copied. CHOIR_ERROR_ARGUMENT: a name twice, or bytes that are not those of the shape;
 * CHOIR_ERROR_IO. */
CHOIR_API int choir_tensors_write(const char *path, const choir_tensor *tensors, int count,
                                  const char *const *metadata);

CHOIR_C_END
#endif
