/* Ranks as a grid of R replicas by E expert groups by H hidden shards: rank (r E + g) H + s has shard s of the experts
 * of group g, of replica r. Each replica has all experts: its groups share them out, and the shards of a group have
 * equal parts of the hidden width of each expert. Tokens go to all hidden shards of the experts of their own replica,
 * and the shards' results are added. Gradients of experts are summed over the replicas. With one replica and one shard,
 * the usual case, each expert lives on exactly one rank and no sum is needed. */
#ifndef CH_COMM_GRID_H
#define CH_COMM_GRID_H

#include "comm/comm.h"

typedef struct ch_grid {
  ch_comm replica;  /* the rank's replica: together its ranks hold every expert once; their tokens are consecutive */
  ch_comm dp_group; /* ranks with the same part of the same experts, one per replica */
  ch_comm ep_group; /* ranks of the replica with the same hidden shard, one per expert group */
  ch_comm tp_group; /* ranks of the replica with the same experts, one per hidden shard */
} ch_grid;

/* A group of `size` ranks of a table, every stride-th starting at `first`, which must include the calling rank. The
 * members exchange only with each other, as ranks 0 .. size-1. Every rank must be in one group at a time, so that all
 * ranks count equally many exchanges. Traffic and the watch stay the table's. */
ch_comm ch_comm_group(const ch_comm *all, int first, int stride, int size);

/* CHOIR_ERROR_ARGUMENT: replicas times hidden shards do not divide the number of ranks. */
int ch_grid_make(const ch_comm *all, int replicas, int hidden, ch_grid *grid);

#endif
