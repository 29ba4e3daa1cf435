/* Training steps on the caller's tokens, without data, logs or checkpoints: what is measured where "a training step"
 * is. */
#ifndef CH_TRAIN_STEPPER_H
#define CH_TRAIN_STEPPER_H

#include "train/update.h"

typedef struct ch_stepper {
  choir_config config;
  choir_model *model;
  ch_optimizer optimizer;
  ch_arena state;
  int64_t step; /* done */
} ch_stepper;

/* Takes over the model, on failure too: its config's micro-batch is the batch of a step. To be freed in any case, and
 * not moved. CHOIR_ERROR_MEMORY and what the plan refuses. */
int ch_stepper_create(choir_model *model, ch_stepper *s);
void ch_stepper_free(ch_stepper *s);

/* A pass over B sequences of the caller's tokens and targets. */
ch_pass ch_stepper_pass(const ch_stepper *s, int B, int T, const int32_t *token, const int32_t *target, int gradients);

/* One step on token and target [B*T]: forward, backward, update. Returns the mean loss before the update. */
double ch_stepper_run(ch_stepper *s, const int32_t *token, const int32_t *target);

#endif
