/* Ranks as actors of one process on a simulated cluster: a table of ranks (comm/comm.h) whose messages take simulated
 * time on SimGrid's links, and a clock for each rank. */
#ifndef SCALE_NETWORK_H
#define SCALE_NETWORK_H

#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs `run` as every one of `ranks` ranks, rank r on host node-r of the platform's file, until all have returned.
 * argv may hold SimGrid's own options (--cfg=...). */
void scale_network_run(int argc, char **argv, const char *platform, int ranks,
                       void (*run)(const ch_comm *comm, void *context), void *context);

/* The rank has computed for so long. It is slept off before its next exchange. */
void scale_network_compute(const ch_comm *comm, double seconds);

/* The rank's simulated time, once all that it computed is slept off; and how much of it it has computed. */
double scale_network_now(const ch_comm *comm);
double scale_network_computed(const ch_comm *comm);

/* Memory that all ranks share, and that nobody's results depend on: room for arrays that are only sent. It has 0
 * everywhere at first. */
void *scale_network_nowhere(int64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
