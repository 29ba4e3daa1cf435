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

/* Distributes tensors over files of at most `max` bytes of data (0: no limit), in their order; a larger tensor has a
 * file of its own. first [count + 1] gets the first tensor of each file, then `count`. Returns the number of files, at
 * least one. */
int ch_tensors_cut(const choir_tensor *tensors, int count, int64_t max, int *first);

/* The path of file f of `files`; of a single one, `path` itself, which ends in .safetensors. `out` has PATH_MAX
 * bytes. */
void ch_tensors_file_path(const char *path, int f, int files, char *out);

/* Writes the index of files already written by ch_tensors_write. CHOIR_ERROR_IO; CHOIR_ERROR_FORMAT if a file differs
 * from the plan. */
int ch_tensors_index_write(const char *path, const choir_tensor *tensors, const int *first, int files);

/* ---- reading ---- */

/* Whether the file `path` exists, or the index of several files in its place. CHOIR_ERROR_IO: this cannot be
 * determined. */
int ch_tensors_exist(const char *path, int *there);

/* Classifies the file `name`: `whole` (model.safetensors), its index, one of its parts, or another file; directories
 * are not expected. */
enum { CH_KIND_OTHER, CH_KIND_WHOLE, CH_KIND_INDEX, CH_KIND_PART };
int ch_tensors_kind(const char *name, const char *whole);

/* Collects all tensors of an index's files for choir_tensors_load; `open` opens a file. Every tensor must be in the
 * file that the index says. Files of choir must be those that the index was written for, without further tensors, and
 * the sizes must add up to its total. */
typedef int (*ch_tensors_opener)(void *context, const char *file, choir_tensors **tensors);
int ch_tensors_set_join(const json_t *index, const char *name, ch_tensors_opener open, void *context,
                        choir_tensors **tensors);

#endif
