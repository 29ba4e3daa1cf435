/* Fine-tuning: a checkpoint trained on a task's labelled set, measured on another. */
#ifndef CHOIR_FINETUNE_H
#define CHOIR_FINETUNE_H

#include "choir/score.h"
#include "choir/train.h"

CHOIR_C_BEGIN

typedef struct choir_finetune_options {
  size_t size;                /* sizeof this struct: set by INIT */
  const choir_config *config; /* of the checkpoint's model, as choir_finetune_config makes it; NULL with resume */
  const char *init_from;      /* a checkpoint, or a run's; with resume not used */
  const choir_task *task;     /* with resume not used */
  const char *data;           /* directory of the task's files; with resume may be NULL */
  const char *out;            /* run directory */
  double epochs;              /* over the training set, which then give train.steps; 0: the config's steps */
  int64_t patience;           /* evaluations without a better one after which to stop; 0: never */
  int batch_sequences;        /* texts that batch routing routes together in evaluations; 0: none of that */
  int resume;                 /* continue the newest checkpoint of `out`, bit for bit */
  choir_model_options run;
  double minutes, disk_minutes;                          /* as in choir_train_options */
  int (*event)(void *context, const choir_event *event); /* or NULL; nonzero: finish the step, save, stop */
  void *context;
} choir_finetune_options;
#define CHOIR_FINETUNE_OPTIONS_INIT \
  { .size = sizeof(choir_finetune_options), .batch_sequences = 32, .run = CHOIR_MODEL_OPTIONS_INIT, .disk_minutes = 60 }
CHOIR_API void choir_finetune_options_default(choir_finetune_options *options,
                                              size_t size); /* the same, as a function */

/* The names of recipes, NULL-terminated: "constant" (a constant rate), "continued" (the pre-training's schedule goes
 * on from the checkpoint's step). */
CHOIR_API const char *const *choir_finetune_recipes(void);

/* The config to fine-tune a checkpoint with: its model, and a recipe's settings. train.eval_every 0 means one
 * evaluation an epoch, train.eval_sequences for rows of the dev set (0: all). */
CHOIR_API int choir_finetune_config(const char *from, const char *recipe, choir_config **config);

/* Trains on the split "train" of a task and measures on "dev". out/ gets config.json, finetune.json, metrics.jsonl,
 * checkpoints/, `best`, which names the checkpoint with the best dev accuracy, and result.json, which has that
 * accuracy: by thresholds if the router has them, which no other text has a part in. A run that the caller stops is
 * evaluated once more; `best` may name that step until the run goes on, result.json does not. Errors as those of
 * choir_train and choir_task_score. */
CHOIR_API int choir_finetune(const choir_finetune_options *options);

CHOIR_C_END
#endif
