/* Prefetch of sharded dense matrices: while one layer computes, the next layer's matrices arrive from their owners.
 * Buffers hold the remote matrices of two layers. */
#ifndef CH_MODEL_PREFETCH_H
#define CH_MODEL_PREFETCH_H

#include "model/param.h"
#include "op/prefetch.h"

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
