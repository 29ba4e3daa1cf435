/* The optimizer over the whole parameter table: state, schedule, clipping, update. */
#ifndef CH_TRAIN_OPTIMIZER_H
#define CH_TRAIN_OPTIMIZER_H

#include "config/config.h"
#include "model/weights.h"
#include "optim/optim.h"

typedef struct ch_optimizer {
  const ch_train_config *config;
  const ch_optim *kind;
  ch_params *params;
  ch_optim_tensor *tensor; /* [params->count] */
  int experts, tensors;    /* experts of all ranks; tensors of an expert */
  double CH_DEV *squares;  /* [params->count], then [experts,tensors]: sums of squared gradients */
} ch_optimizer;

/* Creates the list of tensors, without memory for state. CHOIR_ERROR_ARGUMENT: an unknown optimizer, or a `freeze`
 * that matches no weight or every weight. */
int ch_optimizer_create(const ch_train_config *config, ch_params *params, ch_optimizer *o);
void ch_optimizer_free(ch_optimizer *o);

/* Allocates state and squares from an arena (which may be counting); new state is zero. */
void ch_optimizer_alloc(ch_optimizer *o, ch_arena *arena);

/* The learning rate of step `step`, counted from 1. After a linear warm-up, `schedule` inverse_sqrt is constant and
 * later falls as sqrt(constant_steps / step); cosine falls by half a cosine; both count `schedule_start` earlier steps.
 * A linear cooldown multiplies the last `cooldown_steps`. Beyond the last step the rate stays constant. */
double ch_schedule_learning_rate(const ch_train_config *config, int64_t step);

enum { CH_EVERY_PARAM = -2, CH_OUTSIDE_LAYERS = -1 }; /* in place of a layer number */

/* Computes `squares` of a layer's parameters and, unless NULL, adds them to *total, which becomes NaN or infinite if
 * a gradient is. */
void ch_optimizer_squares(ch_exec *x, ch_optimizer *o, int layer, double CH_DEV *total);

/* The squares [params->count] on the host, in its scratch; for tensors of experts, sums over all experts in their
 * order. Waits for the device. Collective. */
const double *ch_optimizer_read_squares(ch_exec *x, const ch_optimizer *o);

/* Updates a layer's parameters from their gradients. Skips the update if *finite is NaN or infinite. `norm`: global
 * gradient norm, for clipping; step counts from 1. */
void ch_optimizer_step(ch_exec *x, ch_optimizer *o, int layer, int64_t step, double norm, const double CH_DEV *finite);

/* Lists the state as tensors for a checkpoint, at most CH_OPTIM_STATES per parameter: "optimizer.first.NAME".
 * Returns their number. */
int ch_optimizer_tensors(const ch_optimizer *o, ch_stored *tensors);

#endif
