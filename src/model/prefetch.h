/* Sharded dense matrices, each of which one rank of a replica owns, and their prefetch: while one layer computes, the
 * next layer's matrices arrive from their owners. Buffers hold the remote matrices of two layers. */
#ifndef CH_MODEL_PREFETCH_H
#define CH_MODEL_PREFETCH_H

#include "model/param.h"
#include "op/prefetch.h"

/* Shards the layers' dense matrices over the ranks of a replica: each matrix goes to the rank with fewest elements so
 * far. To be called before memory is allocated. */
void ch_params_shard_dense(ch_params *params, const ch_comm *replica);

/* Whether dense matrices are sharded. */
int ch_params_dense_sharded(const ch_params *params);

/* Owner of the next matrix: the rank with the fewest elements so far. Adds `count` to its entry of has [ranks]. */
int ch_next_owner(int64_t *has, int ranks, int64_t count);

/* number [params->count]: sends the entries of sharded matrices from their owners to all ranks of the replica. */
void ch_params_share_numbers(ch_exec *x, const ch_params *params, double *number);

typedef struct ch_prefetch {
  const ch_params *params;
  ch_broadcast *matrix; /* those of a layer */
  ch_broadcasts under_way;
} ch_prefetch;

/* Prepares the prefetches of a pass and sets x->prefetch. All three functions are collective, and do nothing if no
 * dense matrix is sharded. */
void ch_prefetch_init(ch_exec *x, const ch_params *params, ch_prefetch *v);

/* Begin queues the layer's sharded matrices (w16 or w, whichever products read) for sending; ch_prefetch_next starts to
 * send them. They overwrite the buffers of layer `layer` - 2. After end every rank has them. */
void ch_prefetch_begin(ch_exec *x, ch_prefetch *v, int layer);
void ch_prefetch_end(ch_exec *x, ch_prefetch *v);

#endif
