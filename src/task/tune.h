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
  choir_task_measure measure[2]; /* of the last evaluation */
  int measures;
  int64_t result_step; /* that RUN/result.json is about; 0: there is none, or none that can be read */
  int64_t examples;    /* of the training set, handed out so far */
  int64_t step_tokens; /* of the last step */
} ch_tune;

extern const ch_run_kind ch_run_tuning;

/* RUN/finetune.json. Loading fills `settings` and the task. */
int ch_tune_settings_save(const ch_tune *t);
int ch_tune_settings_load(ch_tune *t);

/* RUN/result.json. Made: its text, of the last evaluation, malloc'd. Written: that of run.best, unless it is there or
 * not known; without a best evaluation the file is removed. Read: that of run.best of a run that is resumed. */
int ch_tune_result_make(const ch_tune *t, char **text);
int ch_tune_result_write(ch_tune *t);
void ch_tune_result_read(ch_tune *t);

/* An evaluation in JSON. */
json_t *ch_measure_json(const choir_task_measure *measure);

/* Hashes both sets: on resuming they must be those of the checkpoint. */
void ch_tune_hash(ch_tune *t);

/* Steps of an epoch. */
int64_t ch_tune_epoch_steps(const ch_tune *t);

#endif
