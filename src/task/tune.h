/* A fine-tuning run in progress. */
#ifndef CH_TASK_TUNE_H
#define CH_TASK_TUNE_H

#include "choir/finetune.h"
#include "task/examples.h"
#include "task/set.h"
#include "train/metrics.h"
#include "train/run.h"

/* Settings of a run that RUN/finetune.json keeps beside its config: enough to go on with nothing but the directory. */
typedef struct ch_tune_settings {
  json_t *task; /* its description */
  char data[4096], from[4096];
  int64_t patience, batch_sequences;
} ch_tune_settings;

typedef struct ch_tune {
  ch_run run; /* first: the loop knows nothing else */
  ch_tune_settings settings;
  choir_task *task;
  ch_set train, dev;
  int64_t hash[2]; /* of both */
  ch_sampler sampler;
  int64_t best_correct; /* labels of the dev set that were right at best_step */
  choir_task_measure measure[2], best[2];
  int measures;
  int result_due;      /* `best` is still to be written */
  int64_t examples;    /* of the training set, handed out so far */
  int64_t step_tokens; /* of the last step */
} ch_tune;

extern const ch_run_kind ch_run_tuning;

/* RUN/finetune.json. Loading fills `settings` and the task. */
int ch_tune_settings_save(const ch_tune *t);
int ch_tune_settings_load(ch_tune *t);

/* RUN/result.json, from the best exam. */
int ch_tune_result(const ch_tune *t);

/* An exam in JSON. */
json_t *ch_measure_json(const choir_task_measure *measure);

/* Hashes both sets: on resuming they must be those of the checkpoint. */
void ch_tune_hash(ch_tune *t);

/* Steps of an epoch. */
int64_t ch_tune_epoch_steps(const ch_tune *t);

#endif
