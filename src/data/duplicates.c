#include <stdlib.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "data/data.h"

typedef struct named {
  dev_t device;
  ino_t number;
  const char *path;
} named;

static int by_file(const void *a, const void *b) {
  const named *x = a, *y = b;
  if (x->device != y->device) return x->device < y->device ? -1 : 1;
  return (x->number > y->number) - (x->number < y->number);
}

static int64_t list_files(const choir_data_build_options *o, named *file) {
  int64_t count = 0;
  for (int i = 0; i < o->source_count; i++)
    for (const char *const *path = o->sources[i].inputs; *path; path++) {
      struct stat status;
      if (file && (stat(*path, &status) || !S_ISREG(status.st_mode))) continue; /* a pipe cannot be read twice */
      if (file) file[count] = (named){status.st_dev, status.st_ino, *path};
      count++;
    }
  return count;
}

int ch_build_note_duplicates(const choir_data_build_options *o) {
  named *file, *first = NULL;
  int64_t duplicates = 0;
  CH_TRY(CH_ALLOC(&file, list_files(o, NULL) + 1, "the inputs' names"));
  int64_t count = list_files(o, file);
  qsort(file, (size_t)count, sizeof *file, by_file);
  for (int64_t i = 1; i < count; i++)
    if (!by_file(&file[i - 1], &file[i]) && !duplicates++) first = &file[i];
  if (first)
    ch_notice(
        "%s: is an input for the second time, %lld such in all: their texts count as often as they are given, and may "
        "be both trained on and held out",
        first->path, (long long)duplicates);
  free(file);
  return CHOIR_OK;
}
