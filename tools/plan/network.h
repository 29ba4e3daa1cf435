/* The time of traffic on the links of a cluster. */
#ifndef CH_PLAN_NETWORK_H
#define CH_PLAN_NETWORK_H

#include "plan/cluster.h"
#include "plan/traffic.h"

typedef struct ch_passage {
  double seconds;          /* of a step, for the rank that waits longest */
  double bytes[CH_LEVELS]; /* of a step and all ranks, that turn round at each level: together those of the flow */
  int level;               /* whose links take longest */
} ch_passage;

/* A flow among the first `ranks` ranks of a cluster, every exchange spread evenly over the others of its group, each
 * with a link's bandwidth to itself but for the flow's own bytes. */
ch_passage ch_passage_of(const ch_cluster *cluster, int ranks, const ch_flow *flow);

#endif
