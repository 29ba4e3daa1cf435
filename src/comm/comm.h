/* Ranks: the table of what processes that train one model together say to each other. One process now; a library for
 * several fills the same table. Every function is collective: all ranks call it, in the same order, with the same
 * counts. */
#ifndef CH_COMM_COMM_H
#define CH_COMM_COMM_H

#include "base/memory.h"
#include "base/real.h"

typedef struct ch_comm {
  const char *name;
  int rank, size;
  /* In place, the sum over ranks, added in the order of ranks: the same bits on every rank. `memory` is where x is; a
   * table that cannot reach it copies. CHOIR_ERROR_IO when a rank is gone. */
  int (*sum)(const struct ch_comm *comm, const ch_memory *memory, real CH_DEV *x, int64_t count);
  int (*sum_double)(const struct ch_comm *comm, double *x, int64_t count);
  /* The largest code over ranks, so that a failure of one is an error of all before any of them leaves. */
  int (*agree)(const struct ch_comm *comm, int code);
} ch_comm;

/* One process: every sum is its own. */
extern const ch_comm ch_comm_single;

#endif
