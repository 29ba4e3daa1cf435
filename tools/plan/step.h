/* How long a training step would take, part by part. */
#ifndef CH_PLAN_STEP_H
#define CH_PLAN_STEP_H

#include "plan/network.h"
#include "plan/plan.h"

/* FLOP/s of a rank's peak in the config's compute type; 0: it has none. */
double ch_peak_of(const choir_config *config, const ch_cluster *cluster);

/* Sets the parts of a layout and what follows from them. `params` is the whole model's table. */
void ch_step_of(const choir_config *config, const ch_params *params, const ch_cluster *cluster, const ch_layout *layout,
                ch_plan_layout *out);

#endif
