/* Arrays that are on their way here while others are computed with (model/deal.h): whoever computes says when links are
 * free for them. They do nothing where nothing visits. Collective, but for ch_visits_move. */
#ifndef CH_OP_VISITS_H
#define CH_OP_VISITS_H

#include "comm/collective.h"
#include "op/exec.h"

/* The next of two steps, of which each is worth half a layer's time. */
static inline void ch_visits_next(ch_exec *x) {
  if (x->visits) ch_comm_spread_next(&x->grid.replica, x->visits);
}

/* Moves them on: for who has computed for a while. */
static inline void ch_visits_move(ch_exec *x) {
  if (x->visits) ch_comm_spread_move(&x->grid.replica, x->visits);
}

#endif
