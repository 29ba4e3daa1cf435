#include "train/directory.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "file/dir.h"

int ch_run_directory_check(const char *out) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/data.json", out);
  return access(path, F_OK) ? CHOIR_OK
                            : ch_error(CHOIR_ERROR_ARGUMENT, "%s holds built data; choose another directory", out);
}

int ch_run_directory_take(ch_claim *claim, const char *out) {
  char path[PATH_MAX];
  *claim = CH_CLAIM_NONE;
  CH_TRY(ch_run_directory_check(out));
  CH_TRY(ch_claim_take(claim, out));
  snprintf(path, sizeof path, "%s/checkpoints", out);
  CH_TRY(ch_dir_make(path));
  ch_temporary_clean(out);
  ch_temporary_clean(path);
  return CHOIR_OK;
}
