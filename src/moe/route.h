/* Routing: from scores to a routing record, and backward; used by layers and by choir_route. */
#ifndef CH_MOE_ROUTE_H
#define CH_MOE_ROUTE_H

#include "moe/router.h"

/* All functions read and write a->routing. */

/* Allocates everything except logits and scores, which the caller owns. Arrays that only backward reads come from
 * `keep`. tally: output of op `tally`; sums NULL: allocated with the record. */
void ch_routing_alloc(ch_exec *x, const ch_route_args *a, ch_route_tally tally, ch_arena *keep);

/* Routes scores or logits: computes the record with its index, the gates after the gate options, counts and tally, and
 * updates a->router_state.updated. */
void ch_route(ch_exec *x, const ch_route_args *a);

/* Computes dscores [n,e], the gradient of the router's input (scores or logits), from dgate [slots], which is
 * overwritten. If gates are scores, the record may cover a subset of the tokens; a->n and gate_sum then refer to this
 * subset. */
void ch_route_backward(ch_exec *x, const ch_route_args *a);

/* ---- routing at owners ----
 * If an expert's choice depends only on that expert's scores, one rank computes it: the expert's owner. With one
 * replica the expert's rank is the owner; with several replicas (comm/grid.h) experts are distributed evenly over all
 * ranks. Every rank sends the scores of its tokens to the owners in one exchange of fixed size. An owner runs the
 * unchanged router on all tokens and its local experts, and sends the chosen tokens to every rank. Tokens are ordered
 * by rank, so ties are broken as in a single process. */
enum { CH_CHOSEN_EXPERT_BYTES = 32, CH_CHOSEN_SLOT_BYTES = 8 }; /* sent to every rank, per expert and per slot */

/* Whether a call routes at owners: several ranks, and a router with per_expert. */
static inline int ch_routes_sharded(const ch_exec *x, const ch_route_args *a) {
  return x->comm->size > 1 && a->router->per_expert && !ch_route_by_causal(a) && !a->tokens.assignment;
}

/* Runs the router's `route` distributed over ranks. `all` describes all tokens and experts, but its scores [n /
 * ranks,e] only cover this rank's rows. */
void ch_route_sharded(ch_exec *x, const ch_route_args *all);

#endif
