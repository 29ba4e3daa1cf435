/* Several safetensors files instead of one large file, in Hugging Face's format: NAME-00001-of-00003.safetensors, ...,
 * and an index NAME.safetensors.index.json that maps each tensor to its file. */
#ifndef CH_FILE_TENSORS_SET_H
#define CH_FILE_TENSORS_SET_H

#include "file/tensors.h"

#define CH_TENSORS_SUFFIX ".safetensors"
#define CH_TENSORS_INDEX ".index.json"
/* In the index's metadata: the checksum of every file's header, by the file's name. */
#define CH_TENSORS_FILES_KEY "choir_files"
void ch_tensors_index_path(const char *path, char *out); /* PATH_MAX bytes */

/* ---- writing ---- */

/* How tensors go into files of at most `most` bytes of data (0: any), in their order; a larger one has its own.
 * first [count + 1] gets the tensors that files begin with, then `count`. Returns how many files, at least one. */
int ch_tensors_cut(const choir_tensor *tensors, int count, int64_t max, int *first);

/* The path of file f of so many; of one, `path` itself, which ends in .safetensors. `out` has PATH_MAX bytes. */
void ch_tensors_file_path(const char *path, int f, int files, char *out);

/* Writes the index of files already written by ch_tensors_write. CHOIR_ERROR_IO; CHOIR_ERROR_FORMAT if a file differs
 * from the plan. */
int ch_tensors_index_write(const char *path, const choir_tensor *tensors, const int *first, int files);

/* ---- reading ---- */

/* Whether the file `path` is there, or the index of several that stand for it. CHOIR_ERROR_IO: it cannot be told. */
int ch_tensors_exist(const char *path, int *there);

/* Tells whether the file `name` is `whole` (model.safetensors), its index or one of its parts; no directories. */
enum { CH_KIND_OTHER, CH_KIND_WHOLE, CH_KIND_INDEX, CH_KIND_PART };
int ch_tensors_kind(const char *name, const char *whole);

/* All tensors of the files that an index names, for choir_tensors_load; `open` brings them. Every tensor must be in the
 * file that the index says. Files of choir must be those that the index was written for, with nothing else in them, and
 * the sizes must add up to its total. */
typedef int (*ch_tensors_opener)(void *context, const char *file, choir_tensors **tensors);
int ch_tensors_set_join(const json_t *index, const char *name, ch_tensors_opener open, void *context,
                        choir_tensors **tensors);

#endif
