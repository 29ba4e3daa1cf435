/* A study: one recipe at one scale on one set of data. Recipes say which arms there are; arms and seeds make runs; runs
 * are known by what they compute, so that studies in one directory share them. */
#ifndef CH_STUDY_STUDY_H
#define CH_STUDY_STUDY_H

#include <jansson.h>
#include <limits.h>

#include "choir/config.h"
#include "study/choir_study.h"

/* Files that are part of the program (cmake/embed.cmake). */
typedef struct ch_embedded {
  const char *name, *text;
} ch_embedded;
extern const ch_embedded ch_studies[], ch_configs[]; /* behind the last a row of NULLs; ch_studies has "scales" too */
const char *ch_embedded_find(const ch_embedded *table, const char *name); /* NULL: no such file */

enum { CH_STUDY_RATES = 8, CH_STUDY_NAME = 64, CH_STUDY_SEEDS = 32, CH_RUN_NAME = 128 };
enum { CH_STUDY_TASKS = 32, CH_STUDY_ROUNDS = 64 }; /* rounds in which steps were timed, at most */

/* A labelled task that all runs are fine-tuned on. */
typedef struct ch_study_task {
  char name[CH_STUDY_NAME];
  char given[PATH_MAX]; /* what `choir finetune --task` takes: a name, or the file of a description */
  uint64_t hash;        /* of description, training set and dev set */
  int64_t dev_rows;     /* about */
  double text_bytes;    /* of a row, about */
} ch_study_task;

/* Fine-tuning of every run; no budget where the recipe has no "tune". */
typedef struct ch_study_tune {
  int64_t steps, eval_every, rows; /* of every task; rows of the dev set that are measured, 0: all */
  int batch_sequences;
  char directory[PATH_MAX]; /* of the tasks' files */
  int tasks;                /* those whose files are there */
  ch_study_task *task;
  json_t *missing; /* array of the names of the others */
  json_t *words;   /* {task: accuracy of a bag of words}, or NULL */
} ch_study_tune;

typedef struct ch_study_arm {
  char name[CH_STUDY_NAME];
  choir_config config; /* all of it but rate, seed and steps */
  choir_config_costs costs;
  int rate_of;     /* the arm whose rate it takes; itself: it is searched */
  int row, column; /* of the recipe's arms; of the values that are swept, 0 where none are */
  double swept;    /* that value, or NaN */
  double rate;     /* that was found best, or 0 */
} ch_study_arm;

typedef struct ch_study {
  json_t *recipe, *scale; /* as given */
  char name[CH_STUDY_NAME], scale_name[CH_STUDY_NAME];
  char directory[PATH_MAX]; /* runs stand in directory/runs */
  char own[PATH_MAX];       /* directory/NAME-SCALE: study.json, summary.json, report.html */
  char data[PATH_MAX];
  uint64_t data_hash;
  int64_t data_tokens; /* of its training share */
  int vocab_size;
  int seeds;
  int64_t steps, rate_steps, eval_every, step_tokens;
  int rates;
  double rate[CH_STUDY_RATES];
  int arms;
  ch_study_arm *arm;
  ch_study_tune tune;
} ch_study;

/* ---- study_recipe.c ---- */

/* Recipe and scale by name (of those built in) or path. New references. */
int ch_recipe_load(const char *name, json_t **recipe);
int ch_scale_load(const char *name, json_t **scale);

/* Refuses keys that are not known, by file and key. */
int ch_recipe_check(const char *name, const json_t *recipe);

/* ---- study_arms.c ---- */

/* What "set" and "times" of a part of a recipe or scale change. */
int ch_study_change(choir_config *config, const json_t *from);

/* Fills arms and budgets of a study that has recipe, scale, vocab_size, seeds; tokens 0: the scale's budget. Budgets
 * are cut to whole intervals between evaluations, so that a run that goes on later computes what a long one would. */
int ch_study_plan(ch_study *study, int64_t tokens);
void ch_study_free(ch_study *study);
int ch_study_arm_find(const ch_study *study, const char *name); /* -1: none */

/* The config of one run, whole. */
void ch_study_config(const ch_study *study, int arm, double rate, int seed, int64_t steps, choir_config *config);

/* The name of its directory: router, experts, seed, and a checksum of all that decides what it computes: config (but
 * its number of steps, how often it saves and its name) and data. CHOIR_ERROR_MEMORY. */
int ch_study_run_name(const ch_study *study, const choir_config *config, char *name);

/* DIRECTORY/runs/NAME; `path` has PATH_MAX bytes. */
void ch_study_run_path(const ch_study *study, const char *name, char *path);

/* ---- study_setup.c ---- */

/* The study that the options ask for: recipe, scale, data, directories, study.json. `directory` is set. */
int ch_study_set_up(const choir_study_options *options, ch_study *study);

/* Whether the recipe asks for a measurement: "pools", "tokens", "time". */
int ch_study_measures(const ch_study *study, const char *what);

/* ---- study_file.c: study.json ---- */

int ch_study_save(const ch_study *study);

/* Calls `each` for every study in a directory, in alphabetical order; CHOIR_ERROR_FORMAT where there is none. */
int ch_study_each(const char *directory, int (*each)(void *context, ch_study *study), void *context);

/* ---- study_results.c: what runs wrote ---- */

/* One run up to `steps`: its evaluations. Losses are NaN where one was not made. */
typedef struct ch_study_curve {
  int complete; /* has the evaluation at `steps` */
  int count;
  double *step, *own, *causal; /* [count] loss by the router's own routing, and causal */
  json_t *last, *last_causal;  /* the evaluation at the last of these points (borrowed from `history`) */
  double dropped, imbalance;   /* of training steps, means over the last tenth */
  json_t *history;             /* array of evaluations */
} ch_study_curve;
int ch_study_curve_read(const char *run_directory, int64_t steps, ch_study_curve *curve);
void ch_study_curve_free(ch_study_curve *curve);

/* The causal loss of each rate after the short budget ([rates], NaN: not there), and the best one, or 0. */
int ch_study_best_rate(const ch_study *study, int arm, double *losses, double *best);
int ch_study_find_rates(ch_study *study); /* sets arm[].rate of all */

/* ---- study_tune.c: what is fine-tuned, and on what ---- */

/* Refuses what is wrong with "tune" of a recipe. */
int ch_study_tune_check(const char *file, const json_t *tune);
/* Budgets: the scale's where none are set; and whether the settings suit every arm. ch_study_plan calls it. */
int ch_study_tune_plan(ch_study *study);
/* Of study.json. */
json_t *ch_study_tune_json(const ch_study *study);
int ch_study_tune_read(ch_study *study, const json_t *json, const char *path);
void ch_study_tune_free(ch_study_tune *tune);

/* DIRECTORY/tuned/NAME of a task on the run of an arm and a seed: the name says all that decides what it computes. */
int ch_study_tuned_name(const ch_study *study, int task, int arm, int seed, char *name);
void ch_study_tuned_path(const ch_study *study, const char *name, char *path);

/* ---- study_tune_tasks.c ---- */

/* The tasks in the directory that the options name; those whose files are not there are left out. */
int ch_study_tune_set_up(ch_study *study, const choir_study_options *options);

/* Adds {task: accuracy} of the lines that bench/bag_of_words --json prints. */
int ch_study_words_read(const char *path, json_t *words);

/* ---- study_measure.c, study_time.c ---- */

/* Files beside a run's own: evaluations under several pools, kinds of tokens. */
void ch_study_measure_path(const ch_study *study, const char *run, char *path);
/* Reads it. NULL: it is not there, is damaged, or was made of another number of steps; it is to be made anew. */
json_t *ch_study_measures_read(const ch_study *study, const char *run);

/* Step times of all arms, in turns, into own/time.json; CHOIR_ERROR_INTERRUPTED where `stop` says so. */
int ch_study_time(const ch_study *study, int threads, int (*stop)(void *context), void *context);

/* ---- study_written.c ---- */

/* CHOIR_ERROR_FORMAT, with file and place, for what is not as a study writes it: time.json, a run's measures.json,
 * result.json of one that was fine-tuned. */
int ch_study_check_time(const char *path, const json_t *time);
int ch_study_check_measures(const char *path, const json_t *measures);
int ch_study_check_result(const char *path, const json_t *result);

/* ---- study_summary.c, study_report.c ---- */

/* Everything that the report draws; NULL: an error was set. A function of what stands in the directory. */
json_t *ch_study_summary(ch_study *study);
int ch_study_page(const ch_study *study, const json_t *summary, const char *path);

#endif
