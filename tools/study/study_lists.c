/* The jobs of a study's phases: what each runs, and how much work it is. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "file/checkpoints.h"
#include "file/json.h"
#include "model/weights.h"
#include "study/study_jobs.h"
#include "study/study_values.h"

int ch_jobs_room(ch_jobs *j, int count) {
  free(j->job);
  j->job = calloc((size_t)count + 1, sizeof *j->job);
  j->count = 0;
  return j->job ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "no memory for %d jobs", count);
}

/* A new job about a run directory; NULL where that is in the list already. */
static ch_job *add_job(ch_jobs *j, const ch_study *s, const char *path, const char *ending) {
  const char *name = strrchr(path, '/') + 1;
  for (int i = 0; i < j->count; i++)
    if (!strcmp(j->job[i].run, path)) return NULL;
  ch_job *job = &j->job[j->count++];
  snprintf(job->run, sizeof job->run, "%s", path);
  snprintf(job->log, sizeof job->log, "%.3000s/logs/%s.%s", s->directory, name, ending);
  snprintf(job->word[7], sizeof job->word[7], "%d", j->threads);
  return job;
}

/* The command of a job, of which the first `kept` words are for a run that goes on, too. */
static void command(ch_job *job, const char *const *words, int count, int kept) {
  memcpy(job->argument, words, (size_t)count * sizeof *words);
  job->kept = kept;
}

/* How far a job that trains is: whether it has all its steps. */
static int look(ch_job *job, int64_t steps) {
  int64_t saved = ch_job_saved_steps(job->run);
  job->steps = steps;
  job->done = fmin(1, (double)saved / (double)steps);
  if (saved >= steps) job->state = CH_JOB_DONE;
  return saved >= steps;
}

int ch_jobs_add_run(ch_jobs *j, const ch_study *s, int arm, double rate, int seed, int64_t steps) {
  choir_config config;
  char name[CH_RUN_NAME], path[PATH_MAX];
  ch_study_config(s, arm, rate, seed, steps, &config);
  CH_TRY(ch_study_run_name(s, &config, name));
  ch_study_run_path(s, name, path);
  ch_job *job = add_job(j, s, path, "train.txt");
  if (!job) return CHOIR_OK;
  int searching = !strcmp(j->phase, "rates"), done = look(job, steps);
  snprintf(job->name, sizeof job->name, "%s, %s %g", s->arm[arm].name, searching ? "rate" : "seed",
           searching ? rate : seed);
  snprintf(job->word[0], sizeof job->word[0], "%.3000s/configs/%s.json", s->directory, name);
  job->work = s->arm[arm].costs.train_flops_per_token * (double)(steps * s->step_tokens);
  const char *words[] = {"train", "--config", job->word[0], "--data",    s->data,
                         "--out", job->run,   "--threads",  job->word[7]};
  command(job, words, 9, 9);
  return done ? CHOIR_OK : choir_config_save(&config, job->word[0]);
}

/* The run directory of an arm and a seed, if it has just the steps of this study. */
static int ended(const ch_study *s, int arm, int seed, char *name, char *path, int *there) {
  choir_config config;
  ch_study_config(s, arm, s->arm[arm].rate, seed, s->steps, &config);
  CH_TRY(ch_study_run_name(s, &config, name));
  ch_study_run_path(s, name, path);
  *there = ch_job_saved_steps(path) == s->steps;
  return CHOIR_OK;
}

int ch_jobs_add_measurement(ch_jobs *j, const ch_study *s, int arm, int seed) {
  char name[CH_RUN_NAME], path[PATH_MAX];
  int there;
  CH_TRY(ended(s, arm, seed, name, path, &there));
  json_t *measures = there ? ch_study_measures_read(s, name) : NULL;
  json_decref(measures);
  ch_job *job = there && !measures ? add_job(j, s, path, "measure.txt") : NULL;
  if (!job) return CHOIR_OK;
  snprintf(job->name, sizeof job->name, "%s, seed %d", s->arm[arm].name, seed);
  ch_study_measure_path(s, name, job->word[0]);
  job->work = s->arm[arm].costs.forward_flops_per_token * 12 * 1024 *
              s->arm[arm].config.train.sequence_length; /* evaluations */
  const char *words[] = {"study", "measure",    job->run,    "--data",    s->data,
                         "--out", job->word[0], "--threads", job->word[7]};
  command(job, words, 9, 0);
  return CHOIR_OK;
}

/* ---- fine-tuning ---- */

/* FLOPs of one run: texts are as long as the files' bytes let one guess. */
static double tune_work(const ch_study *s, int task, int arm) {
  const ch_study_tune *t = &s->tune;
  const choir_config_costs *costs = &s->arm[arm].costs;
  double bytes_a_token = 4, most = s->arm[arm].config.train.sequence_length,
         text = fmin(most, t->task[task].text_bytes / bytes_a_token), rows = (double)t->task[task].dev_rows,
         evaluations = ceil((double)t->steps / (double)t->eval_every);
  if (t->rows > 0 && rows > (double)t->rows) rows = (double)t->rows;
  return text * (costs->train_flops_per_token * (double)t->steps * t->batch_sequences +
                 costs->forward_flops_per_token * evaluations * rows * 2); /* by thresholds and by the batch */
}

double ch_study_tune_work(const ch_study *s) {
  double work = 0;
  for (int task = 0; task < s->tune.tasks; task++)
    for (int arm = 0; arm < s->arms; arm++) work += tune_work(s, task, arm) * s->seeds;
  return work;
}

/* "--set" "KEY=VALUE" behind the arguments that are there; the texts stand one after the other in word[6]. */
typedef struct settings {
  ch_job *job;
  int words;
  size_t used;
} settings;

static int add_setting(settings *at, const char *key, const char *value) {
  char *text = at->job->word[6] + at->used;
  size_t room = sizeof at->job->word[6] - at->used;
  int length = snprintf(text, room, "%s=%s", key, value);
  if ((size_t)length >= room || at->words + 3 > CH_JOB_WORDS)
    return ch_error(CHOIR_ERROR_ARGUMENT, "tune: too many settings; '%s' has no room", key);
  at->used += (size_t)length + 1;
  at->job->argument[at->words++] = "--set";
  at->job->argument[at->words++] = text;
  return CHOIR_OK;
}

static int add_number(settings *at, const char *key, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%" PRId64, value);
  return add_setting(at, key, text);
}

/* Budgets behind what the recipe sets: they are the study's. */
static int add_settings(ch_job *job, int words, const ch_study *s, int seed) {
  settings at = {.job = job, .words = words};
  const char *key;
  json_t *value;
  json_object_foreach(json_object_get(json_object_get(s->recipe, "tune"), "set"), key, value) {
    char *text = json_is_string(value) ? strdup(json_string_value(value)) : ch_json_dump(value, JSON_ENCODE_ANY);
    int code = text ? add_setting(&at, key, text) : ch_error(CHOIR_ERROR_MEMORY, "no memory for '%s'", key);
    free(text);
    CH_TRY(code);
  }
  CH_TRY(add_number(&at, "train.steps", s->tune.steps));
  CH_TRY(add_number(&at, "train.eval_every", s->tune.eval_every));
  CH_TRY(add_number(&at, "train.checkpoint_every", s->tune.eval_every));
  CH_TRY(add_number(&at, "train.eval_sequences", s->tune.rows));
  return add_number(&at, "train.seed", seed);
}

int ch_jobs_add_tuning(ch_jobs *j, const ch_study *s, int task, int arm, int seed) {
  const ch_study_task *t = &s->tune.task[task];
  const char *recipe = ch_text_at(json_object_get(s->recipe, "tune"), "recipe");
  char name[CH_RUN_NAME], from[PATH_MAX], path[PATH_MAX];
  int there;
  CH_TRY(ended(s, arm, seed, name, from, &there));
  CH_TRY(ch_study_tuned_name(s, task, arm, seed, name));
  ch_study_tuned_path(s, name, path);
  ch_job *job = add_job(j, s, path, "finetune.txt");
  if (!job) return CHOIR_OK;
  if (!look(job, s->tune.steps) && !there) {
    j->count--;
    memset(job, 0, sizeof *job);
    return CHOIR_OK;
  }
  snprintf(job->name, sizeof job->name, "%s, %s, seed %d", t->name, s->arm[arm].name, seed);
  job->work = tune_work(s, task, arm);
  ch_checkpoint_path(from, s->steps, job->word[0]);
  const char *words[] = {"finetune",
                         "--out",
                         job->run,
                         "--data",
                         s->tune.directory,
                         "--threads",
                         job->word[7],
                         "--from",
                         job->word[0],
                         "--task",
                         t->given,
                         "--recipe",
                         *recipe ? recipe : "constant"};
  command(job, words, 13, 7);
  return add_settings(job, 13, s, seed);
}
