/* Prefetch of the next layer's sharded matrices (model/prefetch.h): layers call these functions when no other
 * communication is active. Without sharded matrices they do nothing. ch_prefetch_next is collective, ch_prefetch_move
 * is not. */
#ifndef CH_OP_PREFETCH_H
#define CH_OP_PREFETCH_H

#include "comm/collective.h"
#include "op/exec.h"

/* Waits for the current stage of the broadcasts and starts the next one. A layer has two stages, each of about half the
 * layer's time. */
static inline void ch_prefetch_next(ch_exec *x) {
  if (x->prefetch) ch_comm_broadcast_next(&x->grid.replica, x->prefetch);
}

/* Makes progress on broadcasts; call it regularly during long computations. */
static inline void ch_prefetch_move(ch_exec *x) {
  if (x->prefetch) ch_comm_broadcast_move(&x->grid.replica, x->prefetch);
}

#endif
