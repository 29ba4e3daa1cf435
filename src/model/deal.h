/* Prefetch of sharded dense matrices: while one layer computes, the next layer's matrices arrive from their owners.
 * Buffers hold the remote matrices of two layers. */
#ifndef CH_MODEL_DEAL_H
#define CH_MODEL_DEAL_H

#include "model/param.h"
#include "op/visits.h"

typedef struct ch_visits {
  const ch_params *params;
  ch_spread *matrix; /* those of a layer */
  ch_spreading under_way;
} ch_visits;

/* Prepares the prefetches of a pass and sets x->visits. All three functions are collective, and do nothing if no dense
 * matrix is sharded. */
void ch_visits_init(ch_exec *x, const ch_params *params, ch_visits *v);

/* Begin queues the layer's sharded matrices (w16 or w, whichever products read) for sending; ch_visits_next starts to
 * send them. They overwrite the buffers of layer `layer` - 2. After end every rank has them. */
void ch_visits_begin(ch_exec *x, ch_visits *v, int layer);
void ch_visits_end(ch_exec *x, ch_visits *v);

#endif
