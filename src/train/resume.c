/* What a run is when it is taken up again; docs/training.md has the rule. RUN/config.json is the wish of the last
 * command, each checkpoint's config what its steps were made with. */
#include "train/resume.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "file/checkpoints.h"
#include "model/config.h"
#include "model/weights.h"

/* RUN/config.json; where that cannot be read, what the newest checkpoint was made with. */
static int kept_config(const char *run, const int64_t *steps, int count, choir_config *config, char *path) {
  snprintf(path, PATH_MAX + 16, "%s/config.json", run);
  int code = choir_config_load(path, config);
  for (int i = 0; code && i < count; i++) {
    if (!i) ch_notice("%s; the newest checkpoint's is taken", choir_error_message());
    ch_checkpoint_path(run, steps[i], path);
    strcat(path, "/config.json");
    code = choir_config_load(path, config);
  }
  return code;
}

static int another_model(const char *path) {
  return ch_error(
      CHOIR_ERROR_ARGUMENT,
      "%s: the run was made with another model than the config given; resume without a config, or train into "
      "another directory",
      path);
}

int ch_resume_config(ch_run *run, const choir_config *given, const int64_t *steps, int count) {
  char path[PATH_MAX + 16];
  choir_config kept;
  CH_TRY(kept_config(run->out, steps, count, &kept, path));
  run->config = given ? *given : kept;
  if (!run->config.model.vocab_size) run->config.model.vocab_size = kept.model.vocab_size;
  return ch_config_same_model(&run->config, &kept) ? CHOIR_OK : another_model(path);
}

/* Nonzero: every field is the same. */
static int same_config(const choir_config *a, const choir_config *b) {
  json_t *x = ch_config_json(a), *y = ch_config_json(b);
  int same = x && y && json_equal(x, y);
  json_decref(x);
  json_decref(y);
  return same;
}

static int load_step(void *context, int64_t step) {
  ch_run *run = context;
  char path[PATH_MAX + 16], config[PATH_MAX + 32];
  choir_config made_with;
  ch_checkpoint_path(run->out, step, path);
  snprintf(config, sizeof config, "%s/config.json", path);
  CH_TRY(choir_config_load(config, &made_with));
  if (!ch_config_same_model(&run->config, &made_with)) return another_model(config);
  CH_TRY(ch_checkpoint_load(run, path));
  run->config_changed = !same_config(&run->config, &made_with);
  return CHOIR_OK;
}

int ch_resume_newest(const ch_trainer *trainer, const int64_t *steps, int count,
                     int (*load)(void *context, int64_t step), void *context) {
  char first[1024] = "";
  int worst = CHOIR_OK;
  for (int i = 0; i < count; i++) {
    int code = load(context, steps[i]);
    if (!code && trainer->step != steps[i])
      code = ch_error(CHOIR_ERROR_FORMAT, "checkpoint %" PRId64 ": holds step %" PRId64, steps[i], trainer->step);
    if (!code && i) ch_notice("goes on from step %" PRId64 ", the newest checkpoint that is whole", steps[i]);
    if (!code) return CHOIR_OK;
    if (code == CHOIR_ERROR_ARGUMENT || code == CHOIR_ERROR_MEMORY) return code;
    if (!i) worst = code, snprintf(first, sizeof first, "%s", choir_error_message());
    ch_notice("%s; passed over", choir_error_message());
  }
  choir_notices(); /* the error says it all */
  if (count == 1) return ch_error(worst, "%s", first);
  return ch_error(worst, "none of %d checkpoints can be resumed from; the newest: %s", count, first);
}

int ch_resume_state(ch_run *run, const int64_t *steps, int count) {
  return ch_resume_newest(&run->trainer, steps, count, load_step, run);
}
