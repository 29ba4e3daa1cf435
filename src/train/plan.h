/* How much memory a config needs. */
#ifndef CH_TRAIN_PLAN_H
#define CH_TRAIN_PLAN_H

#include <stdint.h>

#include "choir/config.h"

/* Bytes of a training process, data aside, and of serving one sequence: fp32 weights, keys and values. */
typedef struct ch_plan {
  choir_memory train;
  int64_t serve;
} ch_plan;

/* Sequences of one training pass: batch_sequences, twice over where two draws of the router are to agree. */
int ch_run_sequences(const choir_config *config);

int ch_plan_make(const choir_config *config, ch_plan *plan);

#endif
