#include "file/checkpoints.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "file/file.h"
#include "file/tensors_set.h"

void ch_checkpoint_path(const char *run, int64_t step, char *out) {
  snprintf(out, PATH_MAX, "%s/checkpoints/%08" PRId64, run, step);
}

int64_t ch_checkpoint_step(const char *name) {
  char same[32];
  if (strspn(name, "0123456789") != strlen(name)) return -1;
  errno = 0;
  int64_t step = strtoll(name, NULL, 10);
  snprintf(same, sizeof same, "%08" PRId64, step);
  return errno || strcmp(same, name) ? -1 : step;
}

static int newest_first(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

static int add_step(int64_t **steps, int *count, int64_t step) {
  int64_t *more = reallocarray(*steps, (size_t)*count + 1, sizeof *more);
  if (!more) return ch_error(CHOIR_ERROR_MEMORY, "no memory for a list of %d checkpoints", *count);
  *steps = more;
  more[(*count)++] = step;
  return CHOIR_OK;
}

int ch_checkpoint_list(const char *run, int64_t **steps, int *count) {
  char path[PATH_MAX];
  int code = CHOIR_OK;
  *steps = NULL;
  *count = 0;
  snprintf(path, sizeof path, "%s/checkpoints", run);
  struct stat there;
  DIR *d = opendir(path);
  if (!d && errno == ENOENT && lstat(path, &there)) return CHOIR_OK; /* none; one that is there must open */
  if (!d) return ch_error_errno("%s: cannot read", path);
  for (struct dirent *entry; !code && (entry = readdir(d));) {
    const char *name = entry->d_name;
    int64_t step = ch_checkpoint_step(name);
    if (step >= 0)
      code = add_step(steps, count, step);
    else if (strspn(name, "0123456789") == strlen(name))
      ch_notice("%s/%s: not a name that choir gives to a checkpoint; passed over", path, name);
  }
  closedir(d);
  if (*count) qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
  if (code) {
    free(*steps);
    *steps = NULL;
  }
  return code;
}

int64_t ch_checkpoint_newest_step(const char *run) {
  int64_t *steps;
  int count;
  if (ch_checkpoint_list(run, &steps, &count)) return -1;
  int64_t newest = count ? steps[0] : -1;
  free(steps);
  return newest;
}

/* The step that the file names, or -1. */
static int64_t named_step(const char *path) {
  char *text;
  size_t size;
  if (ch_file_read(path, 64, &text, &size)) return -1;
  text[strcspn(text, "\n")] = 0;
  int64_t step = ch_checkpoint_step(text);
  free(text);
  return step;
}

int ch_checkpoint_best(const char *run, char *out) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/best", run);
  if (access(path, F_OK)) return 0;
  int64_t step = named_step(path);
  if (step >= 0) ch_checkpoint_path(run, step, out);
  if (step >= 0 && !access(out, F_OK)) return 1;
  ch_notice("%s: names no checkpoint that is there; the newest is taken", path);
  return 0;
}

int ch_checkpoint_resolve(const char *path, char *out) {
  char model[PATH_MAX];
  snprintf(model, sizeof model, "%s/model.safetensors", path);
  if (ch_tensors_there(model)) {
    snprintf(out, PATH_MAX, "%s", path);
    return CHOIR_OK;
  }
  if (access(path, F_OK) != 0) return ch_error_errno("%s: cannot open checkpoint", path);
  if (ch_checkpoint_best(path, out)) return CHOIR_OK;
  int64_t step = ch_checkpoint_newest_step(path);
  if (step < 0)
    return ch_error(CHOIR_ERROR_IO, "%s: neither a checkpoint (no model.safetensors) nor a run with checkpoints/",
                    path);
  ch_checkpoint_path(path, step, out);
  return CHOIR_OK;
}
