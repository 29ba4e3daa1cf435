/* Where checkpoints stand: RUN/checkpoints/STEP, the step in eight digits or more. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "model/weights.h"

void ch_checkpoint_path(const char *run, int64_t step, char *out) {
  snprintf(out, PATH_MAX, "%s/checkpoints/%08" PRId64, run, step);
}

int64_t ch_checkpoint_step(const char *name) {
  if (strlen(name) < 8 || strspn(name, "0123456789") != strlen(name)) return -1;
  return strtoll(name, NULL, 10);
}

int ch_checkpoint_newest(const char *run, char *out, int64_t *step) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/checkpoints", run);
  *step = -1;
  DIR *d = opendir(path);
  if (!d) return errno == ENOENT ? CHOIR_OK : ch_error_errno("%s: cannot read", path);
  for (struct dirent *entry; (entry = readdir(d));)
    if (ch_checkpoint_step(entry->d_name) > *step) *step = ch_checkpoint_step(entry->d_name);
  closedir(d);
  if (*step >= 0) ch_checkpoint_path(run, *step, out);
  return CHOIR_OK;
}

int ch_checkpoint_best(const char *run, char *out) {
  char path[PATH_MAX], *text;
  size_t size;
  snprintf(path, sizeof path, "%s/best", run);
  if (access(path, F_OK) || ch_file_read(path, 64, &text, &size)) return 0;
  text[strcspn(text, "\n")] = 0;
  int64_t step = ch_checkpoint_step(text);
  free(text);
  if (step < 0) return 0;
  ch_checkpoint_path(run, step, out);
  return access(out, F_OK) == 0;
}

int ch_checkpoint_resolve(const char *path, char *out) {
  char model[PATH_MAX];
  int64_t step;
  snprintf(model, sizeof model, "%s/model.safetensors", path);
  if (access(model, F_OK) == 0) {
    snprintf(out, PATH_MAX, "%s", path);
    return CHOIR_OK;
  }
  if (access(path, F_OK) != 0) return ch_error_errno("%s: cannot open checkpoint", path);
  if (ch_checkpoint_best(path, out)) return CHOIR_OK;
  CH_TRY(ch_checkpoint_newest(path, out, &step));
  if (step < 0)
    return ch_error(CHOIR_ERROR_IO, "%s: neither a checkpoint (no model.safetensors) nor a run with checkpoints/",
                    path);
  return CHOIR_OK;
}
