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
  ch_mapped *map; /* [maps] files; none: the bytes belong to somebody else */
  int maps;
  json_t *metadata; /* object of strings, or NULL; of several files the first one's */
  int count;
  choir_tensor *tensor; /* in the order of the data, file by file */
  ch_names names;
};

/* A whole file in memory, which must stay; `name` starts every message. choir_tensors_load on bytes: fuzzing. */
int ch_tensors_parse(const void *data, size_t size, const char *name, int verify, choir_tensors **tensors);

/* choir_tensors_load of data at any byte: other programs write it so, and elements are read by memcpy. The second one
 * opens a single file. */
int ch_tensors_open_unaligned(const char *path, int verify, choir_tensors **tensors);
int ch_tensors_open_file(const char *path, int verify, choir_tensors **tensors);

/* CHOIR_ERROR_FORMAT, naming the first tensor whose data does not begin at a multiple of its elements' size. */
int ch_tensors_check_aligned(const choir_tensors *tensors, const char *name);

/* choir_tensors_write of data that is not at hand: `fetch`, if not NULL, gives a tensor's bytes, which are good until
 * it is called again. It is asked for every tensor once, the larger elements first, unless the file cannot be begun;
 * NULL gives the file up, with the message that it has set: CHOIR_ERROR_IO. */
typedef const void *(*ch_tensor_fetch)(void *context, const choir_tensor *tensor);
int ch_tensors_write(const char *path, const choir_tensor *tensors, int count, const char *const *metadata,
                     ch_tensor_fetch fetch, void *context);

/* A tensor has been read and will not be again soon. */
void ch_tensors_forget(const choir_tensors *tensors, const choir_tensor *tensor);

const char *ch_dtype_name(choir_dtype dtype); /* "F32" */
size_t ch_dtype_size(choir_dtype dtype);      /* bytes of one element */
int ch_dtype_valid(int dtype);

/* Product of a shape times the element size; 0 when it overflows, 1 when *bytes holds it. */
int ch_tensor_bytes(choir_dtype dtype, int dims, const int64_t *shape, size_t *bytes);

/* How a file of choir begins: after these characters come 16 hexadecimal digits, the checksum of the 8 bytes of length
 * and the header with these digits as '0'. The key behind it holds the checksum of the data. */
#define CH_TENSORS_OPENING "{\"__metadata__\":{\"choir_header\":\""
#define CH_TENSORS_HEADER_KEY "choir_header"
#define CH_TENSORS_DATA_KEY "choir_data"
#define CH_TENSORS_BETWEEN "\",\"" CH_TENSORS_DATA_KEY "\":\""
#define CH_TENSORS_ZEROS "0000000000000000"
enum { CH_TENSORS_DIGITS = 16, CH_TENSORS_LENGTH_BYTES = 8 };

#endif
