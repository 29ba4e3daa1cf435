/* The training loop over a run that has been set up. */
#ifndef CH_TRAIN_LOOP_H
#define CH_TRAIN_LOOP_H

#include "choir/train.h"
#include "train/run.h"

/* Memory for batches and for the probabilities that evaluations compare with. */
int ch_run_plan(ch_run *run);

/* The next step, on the next batch. Collective. */
int ch_run_step(ch_run *run, ch_step_result *r);

/* Steps until the config's number of steps, the caller's stop, or an error. */
int ch_run_loop(ch_run *run, const choir_train_options *options);

#endif
