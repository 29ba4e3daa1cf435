/* Ranks: processes that train one model together. */
#ifndef CHOIR_RANKS_H
#define CHOIR_RANKS_H

#include <stdint.h>

#include "choir/event.h"

CHOIR_C_BEGIN

typedef struct choir_ranks choir_ranks;

/* Joins the processes that mpirun or srun started with this one; without a launcher there is a single rank. Call it
 * once per process, from the main thread. CHOIR_ERROR_UNSUPPORTED: this build has no MPI. CHOIR_ERROR_IO: the
 * launcher's processes did not find each other. */
CHOIR_API int choir_ranks_create(choir_ranks **ranks);

/* This process's rank, from 0, and the number of ranks. NULL: 0 of 1. */
CHOIR_API int choir_ranks_rank(const choir_ranks *ranks);
CHOIR_API int choir_ranks_size(const choir_ranks *ranks);

/* Sets how the ranks share a model. Call it before a model is created, with the same values on all ranks. replicas:
 * each replica has all experts, distributed over its ranks (expert parallelism); tokens stay in their replica, and
 * gradients of experts are summed over replicas (docs/clusters.md). hidden_shards: the hidden width h of every expert
 * is split over this number of ranks (tensor parallelism), which must divide h; all shards of an expert process its
 * tokens, and their outputs are added. dense_sharded: each dense matrix of a layer (everything but the experts) and its
 * optimizer state is stored on one rank of each replica, which sends it to the others when the layer runs; results do
 * not change. 0 means 1 replica, 1 shard, unsharded matrices. If all three are 0, or the function is not called,
 * choir_train chooses the layout. The layout changes results only by rounding; files do not depend on the layout.
 * CHOIR_ERROR_ARGUMENT: the replicas do not divide the ranks, or the shards those of a replica. */
CHOIR_API int choir_ranks_set_layout(choir_ranks *ranks, int replicas, int hidden_shards, int dense_sharded);

/* Bytes and messages that this rank has sent so far, and the seconds spent on communication. */
typedef struct choir_ranks_traffic {
  int64_t bytes, messages;
  double seconds;
  int64_t reserved[4];
} choir_ranks_traffic;
CHOIR_API int choir_ranks_get_traffic(const choir_ranks *ranks, choir_ranks_traffic *traffic);

/* Maximum of `code` over ranks, so that one rank's failure is an error on all ranks before they continue;
 * choir_error_message then has the failure's message and rank. Collective; on a single rank it returns `code`. */
CHOIR_API int choir_ranks_agree(const choir_ranks *ranks, int code);

/* choir_ranks_agree with the message of the caller's error in `text`; any nonzero code is an error. */
CHOIR_API int choir_ranks_agree_message(const choir_ranks *ranks, int code, const char *text);

/* Returns CHOIR_ERROR_ARGUMENT on all ranks if the `text` of one rank differs from that of rank 0: "rank 1 of 4 has
 * another `what` than rank 0". Collective; does nothing on one rank. */
CHOIR_API int choir_ranks_check_same(const choir_ranks *ranks, const char *what, const char *text);

/* Starts a watchdog thread: if this rank has waited for another rank for `seconds` within one exchange, the thread
 * calls `event` once with CHOIR_EVENT_SILENT; end the process then, because the exchange cannot be cancelled.
 * Collective, before any other call; seconds 0: no watchdog. CHOIR_ERROR_MEMORY: no thread. CHOIR_ERROR_ARGUMENT, on
 * all ranks: the builds of choir differ between ranks; then call choir_ranks_free. */
CHOIR_API int choir_ranks_watch(choir_ranks *ranks, double seconds, choir_event_callback event, void *context);

/* Leaves the group. Collective; no other call of the library may be running. */
CHOIR_API void choir_ranks_free(choir_ranks *ranks);

CHOIR_C_END
#endif
