/* Tensors in as many files as they need. */
#include <limits.h>
#include <stdlib.h>

#include "base/error.h"
#include "export/plan.h"
#include "file/tensors_set.h"

int ch_export_files(const char *path, const choir_tensor *tensor, int count, int64_t most, const char *const *metadata,
                    ch_tensor_fetch fetch, void *context, const int *failed) {
  int *first = reallocarray(NULL, (size_t)count + 1, sizeof *first), code = CHOIR_OK;
  if (!first) return ch_error(CHOIR_ERROR_MEMORY, "not enough memory for a list of %d tensors", count);
  int files = ch_tensors_cut(tensor, count, most, first);
  for (int f = 0; f < files && !code; f++) {
    char name[PATH_MAX];
    ch_tensors_file_path(path, f, files, name);
    code = ch_tensors_write(name, tensor + first[f], first[f + 1] - first[f], metadata, fetch, context);
    if (*failed) code = *failed;
  }
  if (!code && files > 1) code = ch_tensors_index_write(path, tensor, first, files);
  free(first);
  return code;
}
