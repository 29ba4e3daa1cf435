/* How much memory a config needs. */
#ifndef CH_TRAIN_PLAN_H
#define CH_TRAIN_PLAN_H

#include <stdint.h>

#include "choir/config.h"

/* Bytes by purpose, of a training process and of serving one sequence: the step itself is counted, nothing is
 * estimated. */
typedef struct ch_plan {
  int64_t weights, gradients, optimizer, activations, scratch;
  int64_t train; /* their sum */
  int64_t serve; /* fp32 weights and one sequence's keys and values */
} ch_plan;

/* Sequences of one training pass: batch_sequences, twice over where two draws of the router are to agree. */
int ch_run_sequences(const choir_config *config);

int ch_plan_make(const choir_config *config, ch_plan *plan);

#endif
