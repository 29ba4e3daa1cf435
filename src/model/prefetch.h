/* Sharded dense matrices, each of which one rank of a replica owns, and their prefetch: while one layer computes, the
 * next layer's matrices arrive from their owners. Buffers hold the remote matrices of two layers. */
#ifndef CH_MODEL_PREFETCH_H
#define CH_MODEL_PREFETCH_H

#include "model/param.h"
#include "op/prefetch.h"

/* Assigns each dense matrix of the layers to the rank of the replica with the fewest elements so far. Call it before
 * memory is allocated. */
void ch_params_shard_dense(ch_params *params, const ch_comm *replica);

/* Whether dense matrices are sharded. */
int ch_params_dense_sharded(const ch_params *params);

/* Owner of the next matrix: the rank with the fewest elements so far. Adds `count` to its entry of has [ranks]. */
int ch_next_owner(int64_t *has, int ranks, int64_t count);

/* number [params->count]: sends the entries of sharded matrices from their owners to all ranks of the replica. */
void ch_params_share_numbers(ch_exec *x, const ch_params *params, double *number);

/* The prefetches of a pass. ch_prefetch_start begins to fetch the first layer's matrices. ch_prefetch_layer, called as
 * each layer begins, waits for its matrices (w16 or w, whichever products read), then begins to fetch those of layer
 * `next`, if it exists and they are not in their buffer, which `next` - 2 and `next` + 2 share. Both are collective,
 * and do nothing without sharded matrices. */
void ch_prefetch_start(ch_exec *x, const ch_params *params);
void ch_prefetch_layer(ch_exec *x, int next);
void ch_prefetch_stop(ch_exec *x);

#endif
