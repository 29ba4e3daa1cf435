/* Times of a step that passes in part beside other work. */
#ifndef CH_PLAN_HIDDEN_H
#define CH_PLAN_HIDDEN_H

#include "plan/network.h"

/* The share of all experts that the rank has which has most of them. */
double ch_most_of_experts(const choir_config *config, const ch_layout *layout);

/* Seconds that an update takes whoever has most of it. */
double ch_update_seconds(const choir_config *config, const ch_params *params, const ch_cluster *cluster,
                         const ch_layout *layout);

/* Seconds of a step, of all layers together: of products, forward and backward, and of rows on their way. */
typedef struct ch_shown {
  double attention, dense, experts, rows;
} ch_shown;

/* Seconds of exchanges that no rank waits for. */
double ch_hidden_seconds(const choir_config *config, const ch_params *params, const ch_cluster *cluster,
                         const ch_layout *layout, const ch_shown *shown);

#endif
