/* Shared by the reader and the writer of safetensors files. docs/formats.md describes the checksums. */
#ifndef CH_FILE_TENSORS_H
#define CH_FILE_TENSORS_H

#include <jansson.h>

#include "base/names.h"
#include "choir/tensors.h"

typedef struct ch_mapped {
  const void *at;
  size_t bytes;
} ch_mapped;

struct choir_tensors {
  ch_mapped *map; /* [maps] mapped files; none: the caller owns the bytes */
  int maps;
  json_t *metadata; /* object of strings, or NULL; of several files, that of the first */
  int count;
  choir_tensor *tensor; /* in the order of the data, file by file */
  ch_names names;
};

/* choir_tensors_load on bytes in memory, which must stay valid; `name` starts every message. For fuzzing. */
int ch_tensors_parse(const void *data, size_t size, const char *name, int verify, choir_tensors **tensors);

/* choir_tensors_load for data at any alignment, as other programs write it (elements are read by memcpy).
 * ch_tensors_open_file opens a single file. */
int ch_tensors_open_unaligned(const char *path, int verify, choir_tensors **tensors);
int ch_tensors_open_file(const char *path, int verify, choir_tensors **tensors);

/* CHOIR_ERROR_FORMAT, naming the first tensor whose data does not begin at a multiple of its elements' size. */
int ch_tensors_check_aligned(const choir_tensors *tensors, const char *name);

/* choir_tensors_write for data that is not in memory: `fetch`, if not NULL, returns a tensor's bytes, valid until
 * the next call. It is called once for every tensor, those with larger elements first, unless the file cannot be
 * opened; if it returns NULL, with its error message set, writing stops: CHOIR_ERROR_IO. */
typedef const void *(*ch_tensor_fetch)(void *context, const choir_tensor *tensor);
int ch_tensors_write(const char *path, const choir_tensor *tensors, int count, const char *const *metadata,
                     ch_tensor_fetch fetch, void *context);

/* Called after a tensor was read and will not be read again soon. */
void ch_tensors_forget(const choir_tensors *tensors, const choir_tensor *tensor);

const char *ch_dtype_name(choir_dtype dtype); /* "F32" */
size_t ch_dtype_size(choir_dtype dtype);      /* bytes of one element */
int ch_dtype_valid(int dtype);

/* Product of a shape times the element size; 0 when it overflows, 1 when *bytes holds it. */
int ch_tensor_bytes(choir_dtype dtype, int dims, const int64_t *shape, size_t *bytes);

/* The beginning of choir's files: after these characters come 16 hexadecimal digits, the checksum of the 8 bytes of
 * length and of the header with these digits as '0'. The key after it holds the checksum of the data. */
#define CH_TENSORS_OPENING "{\"__metadata__\":{\"choir_header\":\""
#define CH_TENSORS_HEADER_KEY "choir_header"
#define CH_TENSORS_DATA_KEY "choir_data"
#define CH_TENSORS_BETWEEN "\",\"" CH_TENSORS_DATA_KEY "\":\""
#define CH_TENSORS_ZEROS "0000000000000000"
enum { CH_TENSORS_DIGITS = 16, CH_TENSORS_LENGTH_BYTES = 8 };

#endif
