/* The optimizer over the whole parameter table: state, schedule, clipping, one update. */
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
  int experts, tensors;    /* of all ranks; and how many tensors are of experts */
  double CH_DEV *squares;  /* [params->count], then [experts,tensors]: sums of squares of gradients */
} ch_optimizer;

/* Makes the list of tensors, without memory for state. CHOIR_ERROR_ARGUMENT: an unknown optimizer, or a `freeze` that
 * matches no weight or every weight. */
int ch_optimizer_create(const ch_train_config *config, ch_params *params, ch_optimizer *o);
void ch_optimizer_free(ch_optimizer *o);

/* Gives state and squares their memory from an arena (which may be counting); a fresh state is zero. */
void ch_optimizer_alloc(ch_optimizer *o, ch_arena *arena);

/* The learning rate of step `step`, counted from 1. After a linear warm-up, `schedule` inverse_sqrt is constant and
 * later falls as sqrt(constant_steps / step); cosine falls by half a cosine; both count `schedule_start` earlier steps.
 * A linear cooldown multiplies the last `cooldown_steps`. Beyond the last step the rate stays constant. */
double ch_schedule_learning_rate(const ch_train_config *config, int64_t step);

enum { CH_EVERY_PARAM = -2, CH_OUTSIDE_LAYERS = -1 }; /* instead of the number of a layer */

/* Fills `squares` of a layer's parameters and, unless NULL, adds them to *total, which becomes NaN or infinite if a
 * gradient is. */
void ch_optimizer_squares(ch_exec *x, ch_optimizer *o, int layer, double CH_DEV *total);

/* The squares [params->count] on the host, in its scratch; of experts' tensors sums over all experts, in their
 * order. Waits for the device. Collective. */
const double *ch_optimizer_read_squares(ch_exec *x, const ch_optimizer *o);

/* Updates a layer's parameters from their gradients. Skips the update if *finite is NaN or infinite. `norm`: global
 * gradient norm, for clipping; step counts from 1. */
void ch_optimizer_step(ch_exec *x, ch_optimizer *o, int layer, int64_t step, double norm, const double CH_DEV *finite);

/* The state as tensors for a checkpoint, CH_OPTIM_STATES at most a parameter: "optimizer.first.NAME". Returns how many.
 */
int ch_optimizer_tensors(const ch_optimizer *o, ch_stored *tensors);

#endif
