/* The training loop over a run that has been set up. */
#ifndef CH_TRAIN_LOOP_H
#define CH_TRAIN_LOOP_H

#include "choir/train.h"
#include "train/state.h"

/* Makes room for a step: batch buffers, the executor, the optimizer's scratch. */
int ch_run_plan(ch_run *run);

/* Steps until the config's number of steps, the caller's stop, or an error. */
int ch_run_loop(ch_run *run, const choir_train_options *options);

#endif
