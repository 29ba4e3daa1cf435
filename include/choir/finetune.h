/* Fine-tuning: trains a checkpoint on the labelled data of a task, and evaluates it. */
#ifndef CHOIR_FINETUNE_H
#define CHOIR_FINETUNE_H

#include "choir/score.h"
#include "choir/train.h"

CHOIR_C_BEGIN

/* The names of recipes, NULL-terminated: "constant" (constant learning rate), "continued" (the schedule of
 * pre-training, from the checkpoint's step on). */
CHOIR_API const char *const *choir_finetune_recipes(void);

/* Creates the config for fine-tuning the checkpoint `from`: its model section, with the training settings of a recipe.
 * train.eval_every 0 means one evaluation per epoch; train.eval_sequences is the number of rows of the dev set (0:
 * all). */
CHOIR_API int choir_finetune_config_create(const char *from, const char *recipe, choir_config **config);

/* Trains the checkpoint `init_from` on the split "train" of a task and evaluates on "dev"; create the config with
 * choir_finetune_config_create from the same checkpoint. out/ gets config.json, finetune.json, metrics.jsonl,
 * checkpoints/, `best` (the name of the checkpoint with the best dev accuracy) and result.json (that accuracy, with
 * threshold routing if the router has thresholds). If the caller stops the run, it is evaluated at the last step;
 * `best` may name that step until the run is resumed, but result.json does not count it. Errors as choir_train and
 * choir_task_score. */
CHOIR_API int choir_finetune(const choir_train_options *options);

CHOIR_C_END
#endif
