/* The struct behind the public handle of ranks. */
#ifndef CH_HANDLE_RANKS_H
#define CH_HANDLE_RANKS_H

#include "choir/ranks.h"
#include "comm/grid.h"

struct choir_ranks {
  const ch_comm *comm;
  int replicas, hidden; /* 0: 1 */
  int dense_sharded;
};

/* The comm of these ranks; NULL: a single process. */
const ch_comm *ch_ranks_comm(const choir_ranks *ranks);
/* The grid of the chosen layout. */
int ch_ranks_grid(const choir_ranks *ranks, ch_grid *grid);

#endif
