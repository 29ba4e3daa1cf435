/* Ranks as a grid of R replicas by E expert groups by H hidden shards: rank (r E + g) H + s has shard s of the experts
 * of group g, of replica r. Each replica has all experts: its groups share them out, and the shards of a group have
 * equal parts of the hidden width of each. Tokens go to the experts of their own replica, to all shards, whose results
 * add up; what these learn is summed over the ranks that hold the same. With one replica and one shard, the usual case,
 * that is nothing: an expert lives on one rank of all. */
#ifndef CH_COMM_GRID_H
#define CH_COMM_GRID_H

#include "comm/comm.h"

typedef struct ch_grid {
  ch_comm replica; /* the ranks of this one's replica: they share its experts and have tokens that stand in a row */
  ch_comm holders; /* those that have the same part of the same experts as this one, itself among them */
  ch_comm experts; /* those of its replica that have the same shard: of each group one */
  ch_comm hidden;  /* those of its replica that have the same experts: of each shard one */
} ch_grid;

/* A view of `size` ranks of a table, every stride-th from `first` on, of which this one must be one. They exchange with
 * each other alone, as ranks 0 .. size-1; all ranks must be in such a group at a time, each in its own, so that all
 * count the same exchanges. Traffic and the watch are the table's. */
ch_comm ch_comm_group(const ch_comm *all, int first, int stride, int size);

/* CHOIR_ERROR_ARGUMENT: so many replicas and hidden shards do not divide the ranks. */
int ch_grid_make(const ch_comm *all, int replicas, int hidden, ch_grid *grid);

#endif
