/* The files of a fine-tuning run: its settings, its checkpoints, its best result. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "file/file.h"
#include "file/json.h"
#include "model/config.h"
#include "model/weights.h"
#include "task/tune.h"
#include "train/state.h"

/* The config last: where it is, all is there that a run needs to go on. */
int ch_tune_settings_save(const ch_tune *t) {
  char path[4200];
  const ch_tune_settings *s = &t->settings;
  CH_TRY(ch_json_check_name(s->from));
  CH_TRY(ch_json_check_name(s->data));
  snprintf(path, sizeof path, "%s/finetune.json", t->out);
  CH_TRY(ch_json_save(
      json_pack("{s:s, s:s, s:I, s:I, s:O}", "from", s->from, "data", s->data, "patience", (json_int_t)s->patience,
                "batch_sequences", (json_int_t)s->batch_sequences, "task", s->task),
      path));
  snprintf(path, sizeof path, "%s/config.json", t->out);
  return choir_config_save(&t->config, path);
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
  char *text;
  CH_TRY(read_name(root, path, "from", s->from));
  CH_TRY(read_name(root, path, "data", s->data));
  CH_TRY(ch_json_get_integer(root, path, "patience", 0, INT64_MAX, &s->patience));
  CH_TRY(ch_json_get_integer(root, path, "batch_sequences", 0, 1 << 20, &s->batch_sequences));
  CH_TRY(ch_json_get_object(root, path, "task", &task));
  s->task = json_incref(task);
  if (!(text = ch_json_dump(s->task, 0))) return ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for the task", path);
  int code = ch_task_parse(text, strlen(text), path, &t->task);
  free(text);
  return code;
}

int ch_tune_settings_load(ch_tune *t) {
  char path[4200];
  json_t *root;
  snprintf(path, sizeof path, "%s/finetune.json", t->out);
  CH_TRY(ch_json_load(path, &root));
  int code = read_settings(t, root, path);
  json_decref(root);
  return code;
}

enum { STEP, METRICS, BEST_STEP, BEST_CORRECT, WAITED, TRAIN, DEV, COUNTERS };
_Static_assert((int)COUNTERS <= (int)CH_COUNTERS, "state.h has room for them");

static uint64_t set_hash(const ch_set *set) {
  const ch_examples *e = &set->examples;
  uint64_t hash = XXH64(e->tokens.ids, e->tokens.count * sizeof *e->tokens.ids, 0);
  hash = XXH64(e->label, (size_t)e->count * sizeof *e->label, hash);
  return XXH64(e->words.ids, e->words.count * sizeof *e->words.ids, hash);
}

static void get_counters(const ch_tune *t, ch_counter *c) {
  const ch_tune_state *s = &t->state;
  c[STEP] = (ch_counter){"tune.step", t->trainer.step, NULL};
  c[METRICS] = (ch_counter){"tune.metrics_bytes", s->metrics_bytes, NULL};
  c[BEST_STEP] = (ch_counter){"tune.best_step", s->best_step, NULL};
  c[BEST_CORRECT] = (ch_counter){"tune.best_correct", s->best_correct, NULL};
  c[WAITED] = (ch_counter){"tune.waited", s->waited, NULL};
  c[TRAIN] = (ch_counter){"tune.train_hash", (int64_t)set_hash(&t->train), t->train.path};
  c[DEV] = (ch_counter){"tune.dev_hash", (int64_t)set_hash(&t->dev), t->dev.path};
}

int ch_tune_save(ch_tune *t, char *path) {
  ch_counter c[COUNTERS];
  get_counters(t, c);
  return ch_state_save(t->out, &t->trainer, t->tokenizer, c, COUNTERS, t->state.best_step, path);
}

int ch_tune_load(ch_tune *t, const char *path) {
  ch_counter c[COUNTERS];
  get_counters(t, c);
  CH_TRY(ch_state_load(path, &t->trainer, c, COUNTERS));
  t->trainer.step = c[STEP].value;
  t->state = (ch_tune_state){c[METRICS].value, c[BEST_STEP].value, c[BEST_CORRECT].value, c[WAITED].value};
  return CHOIR_OK;
}

json_t *ch_measure_json(const choir_task_measure *m) {
  return json_pack("{s:s, s:I, s:I, s:o, s:o, s:o}", "routing", m->routing, "labelled", (json_int_t)m->labelled,
                   "correct", (json_int_t)m->correct, "accuracy", ch_json_number(m->accuracy), "matthews",
                   ch_json_number(m->matthews), "f1", ch_json_number(m->f1));
}

int ch_tune_result(const ch_tune *t, const choir_task_measure *m, int measures) {
  char path[4200], step[32];
  double majority;
  int most = ch_majority(t->task, &t->dev.examples, &majority);
  int size = snprintf(step, sizeof step, "%08" PRId64 "\n", t->state.best_step);
  snprintf(path, sizeof path, "%s/best", t->out);
  CH_TRY(ch_file_save(path, step, (size_t)size));
  json_t *root = json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:o, s:s, s:s, s:I}", "task", choir_task_name(t->task),
                           "from", ch_json_name(t->settings.from), "step", (json_int_t)t->state.best_step, "seed",
                           (json_int_t)t->config.train.seed, "train", (json_int_t)t->train.examples.count, "dev",
                           (json_int_t)t->dev.examples.count, "majority", ch_json_number(majority), "majority_label",
                           most < 0 ? "" : choir_task_label(t->task, most), "router", t->config.model.router.name,
                           "batch_sequences", (json_int_t)t->settings.batch_sequences);
  for (int i = 0; i < measures; i++) ch_json_put(root, i ? "batch" : "own", ch_measure_json(&m[i]));
  snprintf(path, sizeof path, "%s/result.json", t->out);
  return ch_json_save(root, path);
}
