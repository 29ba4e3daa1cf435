/* What a layout takes: memory of the rank that has most of it, and how long a training step would take. */
#ifndef CH_PLAN_ESTIMATE_H
#define CH_PLAN_ESTIMATE_H

#include "plan/plan.h"
#include "plan/traffic.h"

/* FLOP/s of a rank's peak in the config's compute type; 0: it has none. */
double ch_peak_of(const choir_config *config, const ch_cluster *cluster);

/* room.c: memory, purposes and bytes, by the engine's own plan. CHOIR_ERROR_ARGUMENT, as ch_trainer_plan. */
int ch_room_of(const choir_config *config, const ch_layout *layout, ch_plan_layout *out);

/* step.c: the parts of a step and what follows from them. `params` is the whole model's table. */
void ch_step_of(const choir_config *config, const ch_params *params, const ch_cluster *cluster, const ch_layout *layout,
                ch_plan_layout *out);

#endif
