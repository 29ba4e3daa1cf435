/* What ranks send each other of dense weights: their gradients, and matrices that live on one rank each. */
#ifndef CH_PLAN_DENSE_H
#define CH_PLAN_DENSE_H

#include "model/param.h"
#include "plan/flow.h"
#include "train/layout.h"

/* Gradients of what every rank has; of matrices that are dealt out to their owners alone. */
void ch_flow_sums(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow *f);

/* Matrices that are dealt out, to the other ranks of the replica. */
void ch_flow_visits(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow *f);

#endif
