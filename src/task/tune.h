/* A fine-tuning run in progress. */
#ifndef CH_TASK_TUNE_H
#define CH_TASK_TUNE_H

#include "choir/finetune.h"
#include "task/examples.h"
#include "task/set.h"
#include "train/metrics.h"

/* Settings of a run that RUN/finetune.json keeps beside its config: enough to go on with nothing but the directory. */
typedef struct ch_tune_settings {
  json_t *task; /* its description */
  char data[4096], from[4096];
  int64_t patience, batch_sequences;
} ch_tune_settings;

/* Where the run stands beside weights and optimizer; in every checkpoint. */
typedef struct ch_tune_state {
  int64_t metrics_bytes; /* length of metrics.jsonl */
  int64_t best_step;     /* 0: none yet */
  int64_t best_correct;  /* labels of the dev set that were right then */
  int64_t waited;        /* evaluations since */
} ch_tune_state;

typedef struct ch_tune {
  const choir_finetune_options *options;
  const char *out;
  choir_config config;
  ch_tune_settings settings;
  choir_task *task;
  choir_tokenizer *tokenizer;
  ch_set train, dev;
  ch_sampler sampler;
  ch_trainer trainer;
  ch_tune_state state;
  ch_metrics metrics;
  choir_memory memory;
} ch_tune;

/* RUN/finetune.json. Loading fills `settings` and the task. */
int ch_tune_settings_save(const ch_tune *t);
int ch_tune_settings_load(ch_tune *t);

/* Saves a checkpoint of the run; path [PATH_MAX] receives its name. Load takes a step number (for ch_resume_newest) and
 * checks that the sets have not changed since the checkpoint was saved. */
int ch_tune_save(ch_tune *t, char *path);
int ch_tune_load(void *tune, int64_t step);

/* RUN/best and RUN/result.json, from an evaluation. */
int ch_tune_result(const ch_tune *t, const choir_task_measure *measure, int measures);

/* An evaluation in JSON. */
json_t *ch_measure_json(const choir_task_measure *measure);

/* Steps of an epoch; evaluations come every so many. */
int64_t ch_tune_epoch_steps(const ch_tune *t);

/* Steps until that, the caller's stop, or an error. */
int ch_tune_loop(ch_tune *t);

#endif
