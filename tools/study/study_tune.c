/* The part of a recipe that fine-tunes: what it asks for, budgets, and the names of its runs. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/suggest.h"
#include "choir/finetune.h"
#include "file/json.h"
#include "study/study.h"
#include "study/study_values.h"

static const json_t *tune_of(const ch_study *s) { return json_object_get(s->recipe, "tune"); }

/* ---- recipe and scale ---- */

static int check_tasks(const char *file, const json_t *tune) {
  json_t *tasks, *task;
  size_t i;
  CH_TRY(ch_json_get_array(tune, file, "tasks", &tasks));
  if (!json_array_size(tasks) || json_array_size(tasks) > CH_STUDY_TASKS)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"tasks\" has %zu entries: must have 1 to %d", file,
                    json_array_size(tasks), CH_STUDY_TASKS);
  json_array_foreach(tasks, i, task) {
    if (!json_string_length(task))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: tasks[%zu] must be the name of a task, or the file of its description",
                      file, i);
  }
  return CHOIR_OK;
}

/* What need not be there, and what the paper's figures are of. */
static int check_types(const char *file, const json_t *tune) {
  const char *name, *text;
  json_t *object, *figures;
  char where[PATH_MAX];
  if (json_object_get(tune, "set")) CH_TRY(ch_json_get_object(tune, file, "set", &object));
  if (json_object_get(tune, "paper_note")) CH_TRY(ch_json_get_string(tune, file, "paper_note", &text));
  if (!json_object_get(tune, "paper")) return CHOIR_OK;
  CH_TRY(ch_json_get_object(tune, file, "paper", &object));
  snprintf(where, sizeof where, "%.3000s: paper", file);
  json_object_foreach(object, name, figures) CH_TRY(ch_json_get_object(object, where, name, &figures));
  return CHOIR_OK;
}

int ch_study_tune_check(const char *file, const json_t *tune) {
  static const char *const keys[] = {"tasks", "recipe", "set", "paper", "paper_note", NULL};
  char where[PATH_MAX], suggestion[100];
  const json_t *recipe = json_object_get(tune, "recipe");
  int known = !recipe;
  snprintf(where, sizeof where, "%s: tune", file);
  if (!json_is_object(tune)) return ch_error(CHOIR_ERROR_FORMAT, "%s: must be an object {...}", where);
  CH_TRY(ch_json_check_keys(tune, where, keys));
  CH_TRY(check_tasks(where, tune));
  CH_TRY(check_types(where, tune));
  for (const char *const *r = choir_finetune_recipes(); *r; r++) known |= !strcmp(*r, ch_text_at(tune, "recipe"));
  return known ? CHOIR_OK
               : ch_error(CHOIR_ERROR_FORMAT, "%s: recipe '%.80s': none of `choir finetune`%s", where,
                          ch_text_at(tune, "recipe"),
                          ch_did_you_mean(suggestion, sizeof suggestion, ch_text_at(tune, "recipe"),
                                          choir_finetune_recipes()));
}

/* Settings hold for every arm; figures of the paper are of arms that there are. */
static int check_arms(const ch_study *s) {
  const char *name;
  json_t *ignored;
  for (int i = 0; i < s->arms; i++) {
    choir_config config = s->arm[i].config;
    int code = ch_study_change(&config, tune_of(s));
    if (!code) code = choir_config_check(&config);
    if (code) return ch_error_in(code, "recipe %s, tune, arm '%s'", s->name, s->arm[i].name);
  }
  json_object_foreach(json_object_get(tune_of(s), "paper"), name, ignored) {
    if (ch_study_arm_find(s, name) < 0)
      return ch_error(CHOIR_ERROR_FORMAT, "recipe %s: tune, paper: '%s': no such arm", s->name, name);
  }
  return CHOIR_OK;
}

int ch_study_tune_plan(ch_study *s) {
  static const char *const keys[] = {"steps", "evaluations", "rows", NULL};
  ch_study_tune *t = &s->tune;
  json_t *scale;
  char where[PATH_MAX];
  int64_t steps, evaluations, rows;
  if (!tune_of(s)) return CHOIR_OK;
  snprintf(where, sizeof where, "scale '%.80s': tune", s->scale_name);
  CH_TRY(ch_json_get_object(s->scale, s->scale_name, "tune", &scale));
  CH_TRY(ch_json_check_keys(scale, where, keys));
  CH_TRY(ch_json_get_integer(scale, where, "steps", 1, 1 << 30, &steps));
  CH_TRY(ch_json_get_integer(scale, where, "evaluations", 1, 1 << 20, &evaluations));
  CH_TRY(ch_json_get_integer(scale, where, "rows", 0, INT64_MAX / 2, &rows));
  if (!t->steps) t->steps = steps;
  if (!t->rows) t->rows = rows;
  t->eval_every = (t->steps + evaluations - 1) / evaluations;
  choir_config config = s->arm[0].config;
  config.train.batch_sequences = 32; /* as choir_finetune_config has it */
  CH_TRY(check_arms(s));
  CH_TRY(ch_study_change(&config, tune_of(s)));
  t->batch_sequences = config.train.batch_sequences;
  return CHOIR_OK;
}

/* ---- study.json ---- */

json_t *ch_study_tune_json(const ch_study *s) {
  const ch_study_tune *t = &s->tune;
  if (!t->tasks) return json_null();
  json_t *tasks = json_array();
  for (int i = 0; i < t->tasks; i++) {
    char hash[24];
    snprintf(hash, sizeof hash, "%016" PRIx64, t->task[i].hash);
    ch_json_add(tasks, json_pack("{s:s, s:s, s:s}", "name", t->task[i].name, "given", t->task[i].given, "hash", hash));
  }
  return json_pack("{s:s, s:I, s:I, s:O, s:O, s:o}", "directory", t->directory, "steps", (json_int_t)t->steps, "rows",
                   (json_int_t)t->rows, "missing", t->missing, "words", t->words, "tasks", tasks);
}

int ch_study_tune_read(ch_study *s, const json_t *json, const char *path) {
  ch_study_tune *t = &s->tune;
  json_t *tasks, *task, *missing, *words;
  const char *name, *given, *hash;
  size_t i;
  if (!json_is_object(json)) return CHOIR_OK;
  CH_TRY(ch_json_get_integer(json, path, "steps", 1, 1 << 30, &t->steps));
  CH_TRY(ch_json_get_integer(json, path, "rows", 0, INT64_MAX / 2, &t->rows));
  CH_TRY(ch_json_get_array(json, path, "tasks", &tasks));
  CH_TRY(ch_json_get_array(json, path, "missing", &missing));
  t->missing = json_incref(missing);
  json_array_foreach(t->missing, i, task) if (!json_is_string(task)) return ch_error(
      CHOIR_ERROR_FORMAT, "%s: missing[%zu] must be the name of a task", path, i);
  CH_TRY(ch_json_get_object(json, path, "words", &words));
  t->words = json_incref(words);
  t->task = calloc(json_array_size(tasks) + 1, sizeof *t->task);
  if (!t->task) return ch_error(CHOIR_ERROR_MEMORY, "no memory for the tasks");
  json_array_foreach(tasks, i, task) {
    CH_TRY(ch_json_get_string(task, path, "name", &name));
    CH_TRY(ch_json_get_string(task, path, "given", &given));
    CH_TRY(ch_json_get_string(task, path, "hash", &hash));
    snprintf(t->task[i].name, sizeof t->task[i].name, "%s", name);
    snprintf(t->task[i].given, sizeof t->task[i].given, "%s", given);
    t->task[i].hash = strtoull(hash, NULL, 16);
    t->tasks++;
  }
  return CHOIR_OK;
}

void ch_study_tune_free(ch_study_tune *t) {
  free(t->task);
  json_decref(t->missing);
  json_decref(t->words);
}

/* ---- runs ---- */

int ch_study_tuned_name(const ch_study *s, int task, int arm, int seed, char *name) {
  const ch_study_task *t = &s->tune.task[task];
  choir_config config;
  char run[CH_RUN_NAME];
  json_t *set = json_object_get(tune_of(s), "set");
  ch_study_config(s, arm, s->arm[arm].rate, seed, s->steps, &config);
  CH_TRY(ch_study_run_name(s, &config, run));
  json_t *all = json_pack("[s, I, I, I, I, s, o]", run, (json_int_t)s->steps, (json_int_t)s->tune.steps,
                          (json_int_t)s->tune.eval_every, (json_int_t)s->tune.rows, ch_text_at(tune_of(s), "recipe"),
                          set ? json_incref(set) : json_null());
  char *text = ch_json_dump(all, JSON_COMPACT | JSON_SORT_KEYS);
  json_decref(all);
  if (!text) return ch_error(CHOIR_ERROR_MEMORY, "no memory for the name of a run");
  uint64_t sum = XXH64(text, strlen(text), t->hash);
  free(text);
  snprintf(name, CH_RUN_NAME, "%.40s-%s-s%d-%016" PRIx64, t->name, config.model.router.name, seed, sum);
  return CHOIR_OK;
}

void ch_study_tuned_path(const ch_study *s, const char *name, char *path) {
  snprintf(path, PATH_MAX, "%.3000s/tuned/%s", s->directory, name);
}
