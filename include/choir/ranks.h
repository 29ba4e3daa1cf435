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

/* Sets the number of replicas of the experts: before a model is made, and the same on all ranks. If neither this
 * function nor the next two are called, choir_train chooses the layout; otherwise the defaults are 1 replica, 1 hidden
 * shard and whole dense matrices. Each replica has all experts, distributed over its ranks. Rows of tokens stay in
 * their replica, and gradients of experts are summed over replicas (docs/clusters.md). Results are equal up to
 * rounding, and files do not depend on the layout. CHOIR_ERROR_ARGUMENT: the replicas do not divide the ranks. */
CHOIR_API int choir_ranks_set_replicas(choir_ranks *ranks, int replicas);

/* Cuts the hidden width of every expert into `shards` shards, each on a rank of its own; when to call it, and what
 * results depend on, is as for choir_ranks_set_replicas. All shards of an expert get its rows, and their outputs are
 * added. CHOIR_ERROR_ARGUMENT: the shards do not divide the ranks of a replica. The shards must also divide the hidden
 * width; making a model checks this. */
CHOIR_API int choir_ranks_set_hidden_shards(choir_ranks *ranks, int shards);

/* Nonzero: one rank of each replica owns each dense matrix of a layer (everything but the experts) with its optimizer
 * state, and sends it to the other ranks when the layer runs. Results are the same, bit for bit. To be called before a
 * model is made, with the same value on all ranks. */
CHOIR_API void choir_ranks_set_dense_sharded(choir_ranks *ranks, int sharded);

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
