/* The files of a fine-tuning run: its settings and its best evaluation. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "file/file.h"
#include "file/json.h"
#include "file/run_files.h"
#include "model/config.h"
#include "task/tune.h"

/* Writes the config first: it marks the other files as those of a run. */
int ch_tune_settings_save(const ch_tune *t) {
  const ch_tune_settings *s = &t->settings;
  CH_TRY(ch_json_check_name(s->from));
  CH_TRY(ch_json_check_name(s->data));
  CH_TRY(choir_config_save(&t->run.config, CH_IN(t->run.out, CH_RUN_CONFIG)));
  return ch_json_save(
      json_pack("{s:s, s:s, s:I, s:I, s:O}", "from", s->from, "data", s->data, "patience", (json_int_t)s->patience,
                "batch_sequences", (json_int_t)s->batch_sequences, "task", s->task),
      CH_IN(t->run.out, CH_RUN_TUNE));
}

/* Copies the path of a file or directory to `out` [4096]. */
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
  const char *path = CH_IN(t->run.out, CH_RUN_TUNE);
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

void ch_tune_hash(ch_tune *t) {
  t->hash[0] = (int64_t)set_hash(&t->train);
  t->hash[1] = (int64_t)set_hash(&t->dev);
  t->run.data_hash = (uint64_t)t->hash[0];
}

json_t *ch_measure_json(const choir_task_measure *m) {
  return json_pack("{s:s, s:I, s:I, s:o, s:o, s:o}", "routing", m->routing, "labelled", (json_int_t)m->labelled,
                   "correct", (json_int_t)m->correct, "accuracy", ch_json_number(m->accuracy), "matthews",
                   ch_json_number(m->matthews), "f1", ch_json_number(m->f1));
}

int ch_tune_result_make(const ch_tune *t, char **text) {
  const ch_run *run = &t->run;
  double majority;
  int max = ch_majority(t->task, &t->dev.examples, &majority);
  json_t *root = json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:o, s:s, s:s, s:I}", "task", choir_task_name(t->task),
                           "from", ch_json_name(t->settings.from), "step", (json_int_t)run->trainer.step, "seed",
                           (json_int_t)run->config.train.seed, "train", (json_int_t)t->train.examples.count, "dev",
                           (json_int_t)t->dev.examples.count, "majority", ch_json_number(majority), "majority_label",
                           max < 0 ? "" : t->task->label[max], "router", run->config.model.router.kind->name,
                           "batch_sequences", (json_int_t)t->settings.batch_sequences);
  for (int i = 0; i < t->measures; i++) ch_json_put(root, i ? "batch" : "own", ch_measure_json(&t->measure[i]));
  return ch_json_file_text(root, CH_IN(run->out, CH_RUN_RESULT), text);
}

int ch_tune_result_write(ch_tune *t) {
  const ch_best *best = &t->run.best;
  const char *path = CH_IN(t->run.out, CH_RUN_RESULT);
  if (t->result_step == best->step || (best->step && !best->result)) return CHOIR_OK;
  if (best->step) CH_TRY(ch_file_save(path, best->result, strlen(best->result)));
  if (!best->step && unlink(path) && errno != ENOENT) return ch_error_errno("%s: cannot be removed", path);
  t->result_step = best->step;
  return CHOIR_OK;
}

enum { CH_RESULT_BYTES = 1 << 20 };

/* An unreadable file is kept until there is a better evaluation. */
void ch_tune_result_read(ch_tune *t) {
  const char *path = CH_IN(t->run.out, CH_RUN_RESULT);
  char *text;
  size_t size;
  json_t *root;
  if (ch_file_read(path, CH_RESULT_BYTES, &text, &size)) return;
  if (!ch_json_parse(text, size, path, &root)) {
    if (ch_json_get_integer(root, path, "step", 1, INT64_MAX, &t->result_step)) t->result_step = 0;
    json_decref(root);
  }
  if (t->result_step && t->result_step == t->run.best.step)
    t->run.best.result = text;
  else
    free(text);
}
