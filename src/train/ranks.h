/* A run's ranks: whether they are to compute the same, and what a step of theirs costs. */
#ifndef CH_TRAIN_RANKS_H
#define CH_TRAIN_RANKS_H

#include "train/run.h"

/* CHOIR_ERROR_ARGUMENT on all ranks, naming the first one that has other data, another checkpoint or another model
 * (ch_model_same) than rank 0. Collective. */
int ch_run_same(const ch_run *run);

/* Traffic of this rank in one step, and its time in exchanges. The rank that was there least is the straggler that the
 * others waited for. */
typedef struct ch_rank_times {
  int ranks; /* 1: nothing else is set */
  int64_t bytes, messages;
  double waited, least;
  int slowest;
} ch_rank_times;

/* So far. */
ch_traffic ch_traffic_of(const ch_comm *comm);

/* Since `before`. Collective. */
ch_rank_times ch_rank_times_since(const ch_comm *comm, const ch_traffic *before);

#endif
