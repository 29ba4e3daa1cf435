/* Memory of the rank that has most of it, by purpose. */
#ifndef CH_PLAN_ROOM_H
#define CH_PLAN_ROOM_H

#include "plan/plan.h"
#include "plan/traffic.h"

/* The engine's own plan for a config on so many ranks, by the dry run that choir train begins with. */
typedef struct ch_engine_plan {
  choir_memory memory;
  int64_t expert_weights, expert_gradients, expert_state; /* bytes of these that belong to experts */
  int64_t local, owned; /* slots of an MoE layer that there is room for: of the rank's tokens, of its experts;
                           0 in one process */
} ch_engine_plan;

/* The plan of one rank of a layout: the last has the most experts, the first the fewest.
 * CHOIR_ERROR_ARGUMENT, as ch_trainer_plan. */
int ch_engine_plan_of(const choir_config *config, int rank, const ch_layout *layout, ch_engine_plan *plan);

/* Sets memory, purposes and bytes of a layout, by the engine's own plan. */
int ch_room_of(const choir_config *config, const ch_layout *layout, ch_plan_layout *out);

#endif
