/* Ranks as a grid of R replicas x E expert groups x H hidden shards: rank (r E + g) H + s holds hidden shard s of the
 * experts of group g in replica r. Each replica holds all experts, distributed over its groups; the shards of a group
 * split the hidden width of each expert evenly. A token is sent to all hidden shards of its experts in its replica, and
 * their results are added. Gradients of experts are summed over the replicas. With one replica and one shard, the usual
 * case, each expert lives on exactly one rank and no sum is needed. */
#ifndef CH_COMM_GRID_H
#define CH_COMM_GRID_H

#include "comm/comm.h"

typedef struct ch_grid {
  ch_comm replica;  /* ranks of the same replica: they hold every expert once, and consecutive tokens */
  ch_comm dp_group; /* ranks with the same hidden shard of the same experts, one per replica */
  ch_comm ep_group; /* ranks of the replica with the same hidden shard, one per expert group */
  ch_comm tp_group; /* ranks of the replica with the same experts, one per hidden shard */
} ch_grid;

/* A group of `size` ranks of a table, every stride-th starting at `first`, which must include the calling rank. The
 * members exchange only with each other, as ranks 0 .. size-1. Every rank must be in one group at a time, so that all
 * ranks count equally many exchanges. Traffic and watch are shared with `all`. */
ch_comm ch_comm_group(const ch_comm *all, int first, int stride, int size);

/* CHOIR_ERROR_ARGUMENT: replicas * hidden does not divide the number of ranks. */
int ch_grid_make(const ch_comm *all, int replicas, int hidden, ch_grid *grid);

#endif
