/* Checks a run's directory: which files it has before a run writes anything. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "file/checkpoints.h"
#include "file/file.h"
#include "file/json.h"
#include "file/path_status.h"
#include "file/run_files.h"
#include "model/config.h"
#include "train/run.h"

static const char *const files[] = CH_RUN_FILES;
enum { FILES = sizeof files / sizeof *files };

/* ---- a fresh run */

/* config.json as choir writes it, of a run that never began, may be replaced; one that was edited by hand may not. */
static int check_config(const char *path) {
  choir_config config;
  char *text;
  size_t size;
  CH_TRY(ch_file_read(path, (size_t)1 << 20, &text, &size));
  json_t *whole = ch_config_load(path, &config) ? NULL : ch_config_json(&config);
  int ours = whole && ch_json_is_saved(whole, text, size);
  json_decref(whole);
  free(text);
  if (ours) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "%s: exists and was not written by choir; train into another directory", path);
}

/* Whether the directory has a run's config, which is written before all other files. */
static int has_config(const char *out, int *has) {
  const char *path = CH_IN(out, CH_RUN_CONFIG);
  CH_TRY(ch_regular_exists(path, has));
  return *has ? check_config(path) : CHOIR_OK;
}

static int check_unused(const char *out) {
  int there[FILES], count;
  int64_t *steps;
  for (int i = 0; i < FILES; i++) {
    CH_TRY(ch_regular_exists(CH_IN(out, files[i]), &there[i]));
    if (there[i] && !strcmp(files[i], CH_RUN_METRICS))
      return ch_error(CHOIR_ERROR_ARGUMENT, "%s already holds a run; resume it, or train into another directory", out);
  }
  for (int i = 1; i < FILES; i++)
    if (there[i] && (!there[0] || i >= CH_RUN_EARLY))
      return ch_error(CHOIR_ERROR_ARGUMENT, "%s: is there, and a run would write it; train into another directory",
                      CH_IN(out, files[i]));
  CH_TRY(ch_checkpoint_list(out, &steps, &count));
  free(steps);
  if (!count) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "%s: holds checkpoints; resume their run, or train into another directory",
                  CH_IN(out, CH_RUN_CHECKPOINTS));
}

/* ---- resuming a run */

static void take_line(ch_run_known *k, const char *line) {
  const json_t *value;
  json_t *root = NULL;
  if (strncmp(line, "{\"event\":\"", 10)) return;
  if (!strncmp(line + 10, "step\",\"step\":", 13)) {
    k->last = strtoll(line + 23, NULL, 10);
    if (k->every > 0 && k->last > k->every) k->saved = k->last - 1 - (k->last - 1) % k->every;
    return;
  }
  if (!(root = json_loads(line, 0, NULL))) return; /* an incomplete line */
  if ((value = json_object_get(json_object_get(json_object_get(root, "config"), "train"), "checkpoint_every")))
    k->every = json_integer_value(value);
  const char *event = json_string_value(json_object_get(root, "event")); /* of duplicate keys the last one counts */
  if (event && !strcmp(event, "checkpoint")) k->saved = json_integer_value(json_object_get(root, "step"));
  json_decref(root);
}

int ch_run_log_read(FILE *file, ch_run_known *k) {
  char *line = NULL;
  size_t capacity = 0;
  while (getline(&line, &capacity, file) > 0) take_line(k, line);
  free(line);
  return !feof(file);
}

static int read_log(const char *path, ch_run_known *k) {
  int there, fd;
  CH_TRY(ch_regular_exists(path, &there));
  if (!there) return CHOIR_OK;
  CH_TRY(ch_open_regular(path, O_RDONLY, &fd));
  FILE *file = fdopen(fd, "r");
  if (!file) return close(fd), ch_error_errno("%s: cannot be read", path);
  int code = ch_run_log_read(file, k) ? ch_error_errno("%s: cannot be read", path) : CHOIR_OK;
  fclose(file);
  return code;
}

/* A run without a checkpoint starts again and its log is emptied. That is correct only if no checkpoint was ever
 * saved: the file no-checkpoint says so, or, for a run of an earlier version, the log has no step at which one was
 * saved. Before the log exists some of the settings may be missing. */
static int check_lost(const char *out) {
  int there;
  ch_run_known k = {0};
  const char *log = CH_IN(out, CH_RUN_METRICS);
  CH_TRY(ch_regular_exists(log, &there));
  if (!there) {
    errno = ENOENT;
    return ch_error_errno("%s: no run has begun here; give the command without --resume", log);
  }
  CH_TRY(ch_regular_exists(CH_IN(out, CH_RUN_NO_CHECKPOINT), &there));
  if (there) return CHOIR_OK;
  CH_TRY(read_log(CH_IN(out, CH_RUN_METRICS), &k));
  CH_TRY(read_log(CH_IN(out, CH_RUN_TIMING), &k));
  if (!k.saved) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT,
                  "%s: has no checkpoint, but the log of the run knows of %" PRId64
                  " steps and of a checkpoint of step "
                  "%" PRId64 "; put the checkpoints back (is a disk not mounted?), or train into another directory",
                  CH_IN(out, CH_RUN_CHECKPOINTS), k.last, k.saved);
}

static int check_run(const char *out) {
  int there, count;
  int64_t *steps;
  for (int i = 0; i < FILES; i++) CH_TRY(ch_regular_exists(CH_IN(out, files[i]), &there));
  CH_TRY(ch_checkpoint_list(out, &steps, &count));
  int code = count ? CHOIR_OK : check_lost(out);
  for (int i = 0; i < count && !code; i++) {
    char path[PATH_MAX];
    ch_checkpoint_path(out, steps[i], path);
    code = ch_checkpoint_check_files(path);
    if (code == CHOIR_ERROR_IO && ch_is_absent(ch_error_number())) code = CHOIR_OK; /* not a directory: ignored */
  }
  free(steps);
  return code;
}

int ch_run_directory_take(ch_reservation *reservation, const char *out, int resume) {
  int there, known = resume;
  *reservation = CH_RESERVATION_NONE;
  CH_TRY(ch_path_exists(CH_IN(out, "data.json"), &there));
  if (there) return ch_error(CHOIR_ERROR_ARGUMENT, "%s holds built data; choose another directory", out);
  if (!resume) CH_TRY(has_config(out, &known));
  CH_TRY(ch_reservation_take(reservation, out, CH_RUN_CHECKPOINTS, known));
  reservation->fruitless = 1;
  CH_TRY(resume ? check_run(out) : check_unused(out));
  reservation->fruitless = 0;
  ch_temporary_clean(out);
  int code = ch_dir_try(CH_IN(out, CH_RUN_CHECKPOINTS)); /* removes leftovers, too */
  return code == CHOIR_ERROR_FULL ? CHOIR_OK : code;     /* space may be free by the time of the first checkpoint */
}
