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

/* The prefetches of a pass. `start` begins with the first layer; `layer`, called as each layer begins, forward and
 * backward, waits for that layer's matrices (w16 or w, whichever products read) and begins to fetch those of layer
 * `next`, which overwrite the buffers of layers `next` - 2 and `next` + 2; without such a layer, or if they are there
 * still, nothing. `start` and `layer` are collective; without sharded matrices they do nothing. */
void ch_prefetch_start(ch_exec *x, const ch_params *params);
void ch_prefetch_layer(ch_exec *x, int next);
void ch_prefetch_stop(ch_exec *x);

#endif
