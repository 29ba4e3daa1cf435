/* Ranks: processes that train one model together. */
#ifndef CHOIR_RANKS_H
#define CHOIR_RANKS_H

#include <stdint.h>

#include "choir/event.h"

CHOIR_C_BEGIN

typedef struct choir_ranks choir_ranks;

/* Joins the processes that mpirun or srun started with this one; without a launcher the process is alone. To be called
 * once per process, from its first thread. CHOIR_ERROR_UNSUPPORTED: this build has no MPI. CHOIR_ERROR_IO: the
 * launcher's processes did not find each other. */
CHOIR_API int choir_ranks_create(choir_ranks **ranks);

/* This process's number, from 0, and how many there are. NULL: 0 of 1. */
CHOIR_API int choir_ranks_rank(const choir_ranks *ranks);
CHOIR_API int choir_ranks_size(const choir_ranks *ranks);

/* Sets how the ranks share a model: before one is made, and the same on all. Each of `replicas` has all experts,
 * distributed over its ranks; rows of tokens stay in their replica, and gradients of experts are summed over replicas
 * (docs/clusters.md). The hidden width of every expert is cut into `hidden_shards`, which must divide it, each on a
 * rank of its own: all shards of an expert get its rows, and their outputs are added. Of `dense_sharded` one rank of
 * each replica owns each dense matrix of a layer (everything but the experts) with its optimizer state, and sends it to
 * the others when the layer runs, which changes no bit. 0 means 1 replica, 1 shard, whole matrices; where all three are
 * 0, or nobody has called this, choir_train chooses. Results of layouts are equal up to rounding, and files do not
 * depend on them. CHOIR_ERROR_ARGUMENT: the replicas do not divide the ranks, or the shards those of a replica. */
CHOIR_API int choir_ranks_set_layout(choir_ranks *ranks, int replicas, int hidden_shards, int dense_sharded);

/* Bytes and messages that this rank has sent to others so far, and the seconds that it spent on it. */
typedef struct choir_ranks_traffic {
  int64_t bytes, messages;
  double seconds;
  int64_t reserved[4];
} choir_ranks_traffic;
CHOIR_API int choir_ranks_get_traffic(const choir_ranks *ranks, choir_ranks_traffic *traffic);

/* Maximum of `code` over ranks, so that one rank's failure is an error on all ranks before they continue;
 * choir_error_message then has the failure's message and rank. Collective; a single process gets its code back. */
CHOIR_API int choir_ranks_agree(const choir_ranks *ranks, int code);

/* The same of what is not the library's error: `text` says what went wrong here. Any code but 0 may mean it. */
CHOIR_API int choir_ranks_agree_message(const choir_ranks *ranks, int code, const char *text);

/* CHOIR_ERROR_ARGUMENT on all ranks if one gives another text than the first one: "rank 1 of 4 has another `what`
 * than rank 0". All must call it; alone, nothing. */
CHOIR_API int choir_ranks_check_same(const choir_ranks *ranks, const char *what, const char *text);

/* From now on a thread looks on: when this rank has waited for another one for `seconds` within one exchange, it calls
 * `event`, once, with CHOIR_EVENT_SILENT. Nothing but the end of the process helps then. All ranks must call it, before
 * anything else; seconds 0: nobody looks. CHOIR_ERROR_MEMORY: no thread. CHOIR_ERROR_ARGUMENT, on all: one is of
 * another build of choir; nothing is left to do but to leave. */
CHOIR_API int choir_ranks_watch(choir_ranks *ranks, double seconds, choir_event_callback event, void *context);

/* Leaves: all must, and none may have a call of the library under way. */
CHOIR_API void choir_ranks_free(choir_ranks *ranks);

CHOIR_C_END
#endif
