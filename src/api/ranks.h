/* What stands behind the public handle. */
#ifndef CH_API_RANKS_H
#define CH_API_RANKS_H

#include "choir/ranks.h"
#include "comm/comm.h"

struct choir_ranks {
  const ch_comm *comm;
  int replicas; /* 0: 1 */
};

/* The table of these ranks; NULL: one process. */
const ch_comm *ch_ranks_comm(const choir_ranks *ranks);
int ch_ranks_replicas(const choir_ranks *ranks);

#endif
