/* A run's directory, its checkpoints, and resuming a run; docs/training.md has the rules. RUN/config.json has the
 * settings of the last command, and each checkpoint's config those that its steps were made with. A checkpoint stores
 * the run's counters, and the hashes that bind it to its data and tokenizer. */
#include "train/run.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/machine.h"
#include "comm/collective.h"
#include "file/checkpoints.h"
#include "file/dir.h"
#include "file/file.h"
#include "file/path_status.h"
#include "file/run_files.h"
#include "model/capacity.h"
#include "model/config.h"
#include "moe/router.h"
#include "train/state.h"

/* ---- checkpoints */

int ch_checkpoint_none(const ch_run *run) {
  static const char text[] = "No checkpoint of this run has been saved yet.\n";
  return run->trainer.step ? CHOIR_OK : ch_file_save(CH_IN(run->out, CH_RUN_NO_CHECKPOINT), text, sizeof text - 1);
}

int ch_checkpoint_save(ch_run *run, char *path) {
  ch_counter c[CH_COUNTERS];
  const ch_comm *comm = run->trainer.model->x.comm;
  int count = run->kind->list_counters(run, c);
  CH_TRY(ch_state_save(run->out, &run->trainer, run->tokenizer, c, count, run->best.step ? run->best.step : -1, path));
  if (!comm->rank) unlink(CH_IN(run->out, CH_RUN_NO_CHECKPOINT)); /* if it stays, the next checkpoint removes it */
  return CHOIR_OK;
}

/* The text of RUN/best. */
typedef struct best_text {
  char text[24];
} best_text;

static best_text text_of(const ch_run *run) {
  best_text t;
  snprintf(t.text, sizeof t.text, "%08" PRId64 "\n", run->best.step);
  return t;
}

int ch_best_begin(const ch_run *run, ch_file *name) {
  const best_text step = text_of(run);
  *name = (ch_file){.fd = -1};
  if (!run->best.step) return CHOIR_OK;
  CH_TRY(ch_file_begin(name, CH_IN(run->out, CH_RUN_BEST)));
  ch_file_write(name, step.text, strlen(step.text));
  return ch_file_flush(name);
}

int ch_best_end(const ch_run *run, ch_file *name) {
  char checkpoint[PATH_MAX];
  const char *best = CH_IN(run->out, CH_RUN_BEST);
  int there = 0;
  ch_checkpoint_path(run->out, run->best.step, checkpoint);
  int code = run->best.step ? ch_path_exists(checkpoint, &there) : CHOIR_OK;
  if (!code && there) return ch_file_commit(name);
  ch_file_abandon(name);
  if (code) return code;
  return unlink(best) && errno != ENOENT ? ch_error_errno("%s: cannot be removed", best) : CHOIR_OK;
}

/* Whether RUN/best already names the best checkpoint. An unreadable file is written again. */
static int is_named(const ch_run *run) {
  char *text, checkpoint[PATH_MAX];
  size_t size;
  int there = 0;
  ch_checkpoint_path(run->out, run->best.step, checkpoint);
  if (!run->best.step || ch_file_read(CH_IN(run->out, CH_RUN_BEST), 64, &text, &size)) return 0;
  int same = !strcmp(text, text_of(run).text);
  free(text);
  return same && !ch_path_exists(checkpoint, &there) && there;
}

int ch_best_save(const ch_run *run) {
  ch_file name;
  if (is_named(run)) return CHOIR_OK;
  CH_TRY(ch_best_begin(run, &name));
  return ch_best_end(run, &name);
}

/* ---- resuming a run */

/* Loads RUN/config.json, or if that cannot be read, the config of the newest checkpoint. */
static int kept_config(const char *run, const int64_t *steps, int count, choir_config *config, char *path) {
  ch_path_in(path, run, CH_RUN_CONFIG);
  int code = ch_config_load(path, config);
  for (int i = 0; code && code != CHOIR_ERROR_UNSUPPORTED && i < count; i++) {
    if (!i) ch_notice("%s; the newest checkpoint's is taken", choir_error_message());
    char checkpoint[PATH_MAX];
    ch_checkpoint_path(run, steps[i], checkpoint);
    ch_path_in(path, checkpoint, "config.json");
    code = ch_config_load(path, config);
  }
  return code;
}

static int check_model(const ch_run *run, const choir_config *made_with, const char *path) {
  char difference[256];
  if (ch_config_same_model(&run->config, made_with, difference, sizeof difference)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT,
                  "%s: the run was made with another model than the config given: %s; resume without a config, or "
                  "train into another directory",
                  path, difference);
}

int ch_resume_config(ch_run *run, const choir_config *given, const int64_t *steps, int count) {
  char path[CH_PATH_BYTES];
  choir_config kept;
  CH_TRY(kept_config(run->out, steps, count, &kept, path));
  run->config = given ? *given : kept;
  if (!run->config.model.vocab_size) run->config.model.vocab_size = kept.model.vocab_size;
  return check_model(run, &kept, path);
}

/* Notes values that depend on all of the run's steps: with other settings they may jump at the next step. */
static void note_jumps(const choir_config *before, const choir_config *now, int64_t step) {
  const ch_router_spec *router = &now->model.router;
  const struct {
    const char *what;
    double was, is;
  } values[] = {
      {"learning rate", ch_schedule_learning_rate(&before->train, step), ch_schedule_learning_rate(&now->train, step)},
      {"capacity factor", ch_router_factor(router, 1) * ch_config_capacity_at(before, step - 1),
       ch_router_factor(router, 1) * ch_config_capacity_at(now, step - 1)},
  };
  for (size_t i = 0; i < sizeof values / sizeof *values && step <= now->train.steps; i++)
    if (values[i].was != values[i].is)
      ch_notice("the %s of step %" PRId64 " is %.6g with these settings, and %.6g with those of the checkpoint",
                values[i].what, step, values[i].is, values[i].was);
}

/* The first field whose change makes earlier evaluations incomparable: it changes the evaluated text or the measured
 * quantity. The data are the same, by their hash. The batch size counts if the evaluated routing depends on the batch.
 * */
static const ch_field *measured_otherwise(const choir_config *before, const choir_config *now) {
  static const char *const fields[] = {"train.batch_sequences", "train.eval_sequences", "train.sequence_length",
                                       "train.objective", "train.mask_schedule"};
  int by_batch = now->model.moe_every && choir_router_looks_across_tokens(now, 0) &&
                 !ch_router_can_be_causal(now->model.router.kind);
  for (size_t i = !by_batch; i < sizeof fields / sizeof *fields; i++) {
    const ch_field *f;
    if (!ch_field_find(fields[i], &f) && !ch_field_same(before, now, f)) return f;
  }
  return NULL;
}

/* Forgets the best evaluation so far if the next evaluations measure something else. */
static void restart_best(ch_run *run, const choir_config *made_with) {
  const ch_field *f = measured_otherwise(made_with, &run->config);
  char was[CHOIR_VALUE_BYTES], is[CHOIR_VALUE_BYTES];
  if (!f || !run->best.step || run->trainer.step >= run->config.train.steps) return;
  ch_notice(
      "%s is %s, and was %s: held-out losses from here on do not compare with those before, and the best "
      "checkpoint is chosen anew (so far that of step %" PRId64 ")",
      f->path, ch_field_text(&run->config, f, is, sizeof is), ch_field_text(made_with, f, was, sizeof was),
      run->best.step);
  run->best = (ch_best){0};
  run->waited = 0;
}

static int load_step(ch_run *run, int64_t step) {
  char path[PATH_MAX];
  choir_config made_with;
  ch_checkpoint_path(run->out, step, path);
  const char *config = CH_IN(path, "config.json");
  CH_TRY(ch_config_load(config, &made_with));
  CH_TRY(check_model(run, &made_with, config));
  ch_counter c[CH_COUNTERS];
  int count = run->kind->list_counters(run, c);
  CH_TRY(ch_state_load(path, &run->trainer, c, count));
  run->kind->fill_counters(run, &made_with);
  run->config_changed = ch_config_hash(&run->config) != ch_config_hash(&made_with);
  note_jumps(&made_with, &run->config, step + 1);
  restart_best(run, &made_with);
  return CHOIR_OK;
}

/* The error of a checkpoint that cannot be read but may be intact: only a damaged checkpoint is replaced by an older
 * one. */
static int unread(int64_t step) {
  return ch_error_in(CHOIR_ERROR_IO,
                     "checkpoint %" PRId64
                     " cannot be read, and may be whole; try again, or give it another name to "
                     "go on from an older one",
                     step);
}

int ch_resume_state(ch_run *run, const int64_t *steps, int count) {
  const ch_trainer *trainer = &run->trainer;
  char first[1024] = "";
  int worst = CHOIR_OK;
  for (int i = 0; i < count; i++) {
    int code = load_step(run, steps[i]);
    if (!code && trainer->step != steps[i])
      code = ch_error(CHOIR_ERROR_FORMAT, "checkpoint %" PRId64 ": holds step %" PRId64, steps[i], trainer->step);
    if (!code && i) ch_notice("goes on from step %" PRId64 ", the newest checkpoint that is whole", steps[i]);
    if (!code) return CHOIR_OK;
    if (code == CHOIR_ERROR_ARGUMENT || code == CHOIR_ERROR_MEMORY) return code;
    if (ch_is_unreadable(code)) return unread(steps[i]);
    if (!i) worst = code, snprintf(first, sizeof first, "%s", choir_error_message());
    ch_notice("%s; passed over", choir_error_message());
  }
  choir_notices(); /* the error message contains the notices */
  if (count == 1) return ch_error(worst, "%s", first);
  return ch_error(worst, "none of %d checkpoints can be resumed from; the newest: %s", count, first);
}

/* Every rank looks for the newest checkpoint that it can read; checks that all ranks found the same one. A rank that
 * skipped one reports why. */
static int same_step(const ch_run *run) {
  const ch_comm *comm = run->trainer.model->x.comm;
  int64_t own = run->trainer.step, first = own;
  int code = CHOIR_OK;
  ch_comm_broadcast(comm, 0, &first, sizeof first);
  if (own != first) {
    const char *note = choir_notices();
    code = ch_error(CHOIR_ERROR_ARGUMENT,
                    "goes on from step %" PRId64 ", and rank 0 from step %" PRId64
                    ": all must see the same checkpoints in %s%s%.*s",
                    own, first, run->out, *note ? "; " : "", (int)strcspn(note, "\n"), note);
  }
  return ch_comm_agree(comm, code);
}

static uint64_t bits_of(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

int ch_run_same(const ch_run *run) {
  CH_TRY(same_step(run));
  const ch_fact facts[] = {{"data", run->data_hash},
                           {"patience", (uint64_t)run->patience},
                           {"minutes", bits_of(run->options->minutes)},
                           {"disk_minutes", bits_of(run->options->disk_minutes)}};
  CH_TRY(CH_SAME(run->trainer.model->x.comm, facts));
  return ch_model_same(run->trainer.model);
}

int ch_run_begin(ch_run *run, const ch_run_kind *kind, const choir_train_options *o) {
  run->kind = kind;
  run->started = ch_machine_seconds();
  run->out = o->out;
  run->options = o;
  run->patience = o->patience;
  if (!run->out) return ch_error(CHOIR_ERROR_ARGUMENT, "training needs a directory for the run");
  if (!(o->disk_minutes >= 0))
    return ch_error(CHOIR_ERROR_ARGUMENT, "disk_minutes is %g: must not be negative", o->disk_minutes);
  if (!(o->minutes >= 0))
    return ch_error(CHOIR_ERROR_ARGUMENT, "minutes is %g: must be a number of minutes, or 0 for no limit", o->minutes);
  if (o->patience < 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "patience is %" PRId64 ": must not be negative", o->patience);
  return CHOIR_OK;
}

void ch_run_free(ch_run *run) {
  free(run->best.result);
  free(run->before.result);
  ch_trainer_free(&run->trainer);
  choir_tokenizer_free(run->tokenizer);
}
