/* Prefetch of the next layer's sharded matrices (model/prefetch.h): layers call these when the links are free. They do
 * nothing without sharded matrices. ch_prefetch_next is collective, ch_prefetch_move is not. */
#ifndef CH_OP_PREFETCH_H
#define CH_OP_PREFETCH_H

#include "comm/collective.h"
#include "op/exec.h"

/* Ends the current step of the broadcasts and begins the next of two; each step may take half a layer's time. */
static inline void ch_prefetch_next(ch_exec *x) {
  if (x->prefetch) ch_comm_broadcast_next(&x->grid.replica, x->prefetch);
}

/* Makes progress; to be called now and then during long computations. */
static inline void ch_prefetch_move(ch_exec *x) {
  if (x->prefetch) ch_comm_broadcast_move(&x->grid.replica, x->prefetch);
}

#endif
