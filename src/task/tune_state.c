/* The files of a fine-tuning run: its settings, its checkpoints, its best result. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "file/checkpoints.h"
#include "file/file.h"
#include "file/json.h"
#include "file/run_files.h"
#include "model/config.h"
#include "task/tune.h"
#include "train/state.h"

/* The config first: it says of the files beside it that they are a run's. */
int ch_tune_settings_save(const ch_tune *t) {
  const ch_tune_settings *s = &t->settings;
  CH_TRY(ch_json_check_name(s->from));
  CH_TRY(ch_json_check_name(s->data));
  CH_TRY(choir_config_save(&t->config, CH_IN(t->out, CH_RUN_CONFIG)));
  return ch_json_save(
      json_pack("{s:s, s:s, s:I, s:I, s:O}", "from", s->from, "data", s->data, "patience", (json_int_t)s->patience,
                "batch_sequences", (json_int_t)s->batch_sequences, "task", s->task),
      CH_IN(t->out, CH_RUN_TUNE));
}

/* The name of a file or directory into `out` [4096]. */
static int read_name(const json_t *root, const char *path, const char *key, char *out) {
  const char *name;
  CH_TRY(ch_json_get_string(root, path, key, &name));
  if (!*name || strlen(name) > 4095)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"%s\" has %zu bytes: must be a name of 1 to 4095", path, key,
                    strlen(name));
  strcpy(out, name);
  return CHOIR_OK;
}

static int read_settings(ch_tune *t, const json_t *root, const char *path) {
  ch_tune_settings *s = &t->settings;
  json_t *task;
  CH_TRY(read_name(root, path, "from", s->from));
  CH_TRY(read_name(root, path, "data", s->data));
  CH_TRY(ch_json_get_integer(root, path, "patience", 0, INT64_MAX, &s->patience));
  CH_TRY(ch_json_get_integer(root, path, "batch_sequences", 0, 1 << 20, &s->batch_sequences));
  CH_TRY(ch_json_get_object(root, path, "task", &task));
  s->task = json_incref(task);
  return ch_task_make(json_incref(task), path, &t->task);
}

int ch_tune_settings_load(ch_tune *t) {
  const char *path = CH_IN(t->out, CH_RUN_TUNE);
  json_t *root;
  CH_TRY(ch_json_load(path, &root));
  int code = read_settings(t, root, path);
  json_decref(root);
  return code;
}

static uint64_t set_hash(const ch_set *set) {
  const ch_examples *e = &set->examples;
  uint64_t hash = XXH64(e->tokens.ids, e->tokens.count * sizeof *e->tokens.ids, 0);
  hash = XXH64(e->label, (size_t)e->count * sizeof *e->label, hash);
  return XXH64(e->words.ids, e->words.count * sizeof *e->words.ids, hash);
}

/* Lists the counters of a checkpoint. hash: scratch for the hashes of both sets, which must match on resuming. */
static int get_counters(ch_tune *t, ch_counter *c, int64_t hash[2]) {
  ch_tune_state *s = &t->state;
  hash[0] = (int64_t)set_hash(&t->train);
  hash[1] = (int64_t)set_hash(&t->dev);
  const ch_counter all[] = {{"tune.step", &t->trainer.step, NULL},   {"tune.metrics_bytes", &s->metrics_bytes, NULL},
                            {"tune.best_step", &s->best_step, NULL}, {"tune.best_correct", &s->best_correct, NULL},
                            {"tune.waited", &s->waited, NULL},       {"tune.train_hash", &hash[0], t->train.path},
                            {"tune.dev_hash", &hash[1], t->dev.path}};
  _Static_assert(sizeof all <= CH_COUNTERS * sizeof *all, "state.h has room for them");
  memcpy(c, all, sizeof all);
  return sizeof all / sizeof *all;
}

int ch_tune_save(ch_tune *t, char *path) {
  ch_counter c[CH_COUNTERS];
  int64_t hash[2];
  int count = get_counters(t, c, hash);
  return ch_state_save(t->out, &t->trainer, t->tokenizer, c, count, t->state.best_step, path);
}

int ch_tune_load(void *tune, int64_t step) {
  ch_tune *t = tune;
  ch_counter c[CH_COUNTERS];
  int64_t hash[2];
  char path[PATH_MAX];
  int count = get_counters(t, c, hash);
  ch_checkpoint_path(t->out, step, path);
  return ch_state_load(path, &t->trainer, c, count);
}

json_t *ch_measure_json(const choir_task_measure *m) {
  return json_pack("{s:s, s:I, s:I, s:o, s:o, s:o}", "routing", m->routing, "labelled", (json_int_t)m->labelled,
                   "correct", (json_int_t)m->correct, "accuracy", ch_json_number(m->accuracy), "matthews",
                   ch_json_number(m->matthews), "f1", ch_json_number(m->f1));
}

int ch_tune_result(const ch_tune *t, const choir_task_measure *m, int measures) {
  char step[32];
  double majority;
  int most = ch_majority(t->task, &t->dev.examples, &majority);
  int size = snprintf(step, sizeof step, "%08" PRId64 "\n", t->state.best_step);
  CH_TRY(ch_file_save(CH_IN(t->out, CH_RUN_BEST), step, (size_t)size));
  json_t *root = json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:o, s:s, s:s, s:I}", "task", choir_task_name(t->task),
                           "from", ch_json_name(t->settings.from), "step", (json_int_t)t->state.best_step, "seed",
                           (json_int_t)t->config.train.seed, "train", (json_int_t)t->train.examples.count, "dev",
                           (json_int_t)t->dev.examples.count, "majority", ch_json_number(majority), "majority_label",
                           most < 0 ? "" : t->task->label[most], "router", t->config.model.router.name,
                           "batch_sequences", (json_int_t)t->settings.batch_sequences);
  for (int i = 0; i < measures; i++) ch_json_put(root, i ? "batch" : "own", ch_measure_json(&m[i]));
  return ch_json_save(root, CH_IN(t->out, CH_RUN_RESULT));
}
