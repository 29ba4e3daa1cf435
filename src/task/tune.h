/* A fine-tuning run in progress. */
#ifndef CH_TASK_TUNE_H
#define CH_TASK_TUNE_H

#include "choir/finetune.h"
#include "task/examples.h"
#include "task/set.h"
#include "train/metrics.h"
#include "train/run.h"

/* Settings of a run that RUN/finetune.json stores next to its config, so that the directory alone is enough for
 * resuming. */
typedef struct ch_tune_settings {
  json_t *task; /* description of the task */
  char data[4096], from[4096];
  int64_t patience, batch_sequences;
} ch_tune_settings;

typedef struct ch_tune {
  ch_run run; /* must be first: the loop uses only this member */
  ch_tune_settings settings;
  choir_task *task;
  ch_set train, dev;
  int64_t hash[2]; /* hash of each set */
  ch_sampler sampler;
  choir_task_measure measure[2]; /* results of the last evaluation */
  int measures;
  int64_t result_step; /* step of the evaluation in RUN/result.json; 0: no file, or an unreadable one */
  int64_t examples;    /* training examples handed out so far */
  int64_t step_tokens; /* tokens of the last step */
} ch_tune;

extern const ch_run_kind ch_run_tuning;

/* Writes and reads RUN/finetune.json. Loading fills `settings` and the task. */
int ch_tune_settings_save(const ch_tune *t);
int ch_tune_settings_load(ch_tune *t);

/* RUN/result.json. make: the text of the last evaluation, malloc'd. write: writes that of run.best, unless the file
 * has it already or the text is unknown; without a best evaluation the file is removed. read: reads that of run.best
 * when a run is resumed. */
int ch_tune_result_make(const ch_tune *t, char **text);
int ch_tune_result_write(ch_tune *t);
void ch_tune_result_read(ch_tune *t);

/* An evaluation as JSON. */
json_t *ch_measure_json(const choir_task_measure *measure);

/* Hashes both sets: on resuming they must be those of the checkpoint. */
void ch_tune_hash(ch_tune *t);

/* Steps per epoch. */
int64_t ch_tune_epoch_steps(const ch_tune *t);

#endif
