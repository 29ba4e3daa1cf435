/* Where experts choose by their own scores alone, each chooses on one rank: where it lives, or with several replicas
 * (comm/grid.h) on one of all, its owner here, so that all ranks have as many to choose for. The scores of a rank's
 * tokens go to the experts' owners, one exchange of fixed size; there the router runs unchanged on all tokens and its
 * own experts, and what these took comes back to everybody. Ranks stand in the order of their tokens, so that equal
 * scores fall as they do on one process. */
#ifndef CH_MOE_AT_OWNERS_H
#define CH_MOE_AT_OWNERS_H

#include "moe/router.h"

enum { CH_CHOSEN_EXPERT_BYTES = 32, CH_CHOSEN_SLOT_BYTES = 8 }; /* that everybody hears of an expert, and of a slot */

/* Whether a call runs so: there are several ranks, and the router can. */
static inline int ch_routes_at_owners(const ch_exec *x, const ch_route_args *a) {
  return x->comm->size > 1 && a->router->choose_alone && !ch_route_by_causal(a);
}

/* The router's `route` over ranks: `all` is about all tokens and experts, but for its scores, which are those of this
 * rank's tokens: [n / ranks, e]. */
void ch_route_at_owners(ch_exec *x, const ch_route_args *all);

#endif
