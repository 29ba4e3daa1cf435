/* Backend "clock": ops that compute nothing and touch no array of the model. Each lets its rank's clock go on by
 * max(FLOPs / rate, bytes / memory bandwidth), what the planner takes for a whole part of the step. Routing is made up
 * (routes.h). */
#ifndef SCALE_OPS_H
#define SCALE_OPS_H

#include "op/backend.h"
#include "plan/cluster.h"

/* The backend, with the rates of a cluster; NULL: nothing takes time. Once in a process. */
const ch_backend *scale_clock(const ch_cluster *cluster);

#endif
