/* The training loop over a run that has been set up. */
#ifndef CH_TRAIN_LOOP_H
#define CH_TRAIN_LOOP_H

#include "choir/train.h"
#include "train/state.h"

/* Makes room for a step: batch buffers, the executor, the optimizer's scratch. */
int ch_run_plan(ch_run *run);

/* The next step; fills the event's step, tokens, loss, aux_loss, rate, gradient_norm, dropped. Collective. */
int ch_run_step(ch_run *run, choir_train_event *e);

/* The error for a loss or gradient that is not finite: names the first weight or gradient that is not. */
int ch_run_not_finite(const ch_run *run, int64_t step, double loss);

/* That error when a weight is not finite; CHOIR_OK otherwise. */
int ch_run_check_weights(ch_run *run, double loss);

/* Steps until the config's number of steps, the caller's stop, or an error. */
int ch_run_loop(ch_run *run, const choir_train_options *options);

#endif
