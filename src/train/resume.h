/* Taking up a run again. */
#ifndef CH_TRAIN_RESUME_H
#define CH_TRAIN_RESUME_H

#include "train/run.h"

/* The config that the run goes on with: `given`, or (NULL) the run's own, which must describe the same model. steps
 * [count]: of the checkpoints that are there, the newest first. */
int ch_resume_config(ch_run *run, const choir_config *given, const int64_t *steps, int count);

/* Loads the newest of some checkpoints that `load` takes into the trainer, and tells of those passed over. Where none
 * will do, or one is refused for what was asked for (CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_MEMORY): the error. */
int ch_resume_newest(const ch_trainer *trainer, const int64_t *steps, int count,
                     int (*load)(void *context, int64_t step), void *context);

/* Loads the newest checkpoint that is whole and this run's, and tells of those passed over; run->config_changed says
 * whether its steps were made with another config. An error where there are some and none will do: beginning anew would
 * throw the log away. */
int ch_resume_state(ch_run *run, const int64_t *steps, int count);

#endif
