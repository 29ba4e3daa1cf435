/* From scores to a routing record, and back: the one way, for a layer and for a caller's matrix of scores alike. */
#ifndef CH_MOE_ROUTE_H
#define CH_MOE_ROUTE_H

#include "moe/router.h"

/* All of these work on a->routing. */

/* Allocates everything except logits and scores, which the caller owns. Arrays that only backward reads come from
 * `keep`. tally: where to count, sums NULL: with the record. */
void ch_routing_alloc(ch_exec *x, const ch_route_args *a, ch_route_tally tally, ch_arena *keep);

/* Routes scores, or logits: the record with its index, gates changed where options say so, counts, tally; and folds
 * what it saw into a->router_state.updated. */
void ch_route(ch_exec *x, const ch_route_args *a);

/* dscores [n,e] = the gradient of the router's input (scores or logits), computed from dgate [slots], which is
 * overwritten. If gates are scores, the record may cover only some tokens; a->n and gate_sum are then of these tokens.
 */
void ch_route_backward(ch_exec *x, const ch_route_args *a);

/* ---- routing at owners ----
 * If an expert's choice depends on its own scores alone, one rank makes it: the expert's owner. With one replica the
 * expert's rank is the owner; with several replicas (comm/grid.h) experts are distributed evenly over all ranks. Every
 * rank sends the scores of its tokens to the owners in one exchange of fixed size. An owner runs the unchanged router
 * on all tokens and its own experts and sends the chosen tokens to every rank. Tokens are ordered by rank, so ties are
 * broken as in a single process. */
enum { CH_CHOSEN_EXPERT_BYTES = 32, CH_CHOSEN_SLOT_BYTES = 8 }; /* sent to every rank, per expert and per slot */

/* Whether a call routes at owners: with several ranks and a router that allows it. */
static inline int ch_routes_sharded(const ch_exec *x, const ch_route_args *a) {
  return x->comm->size > 1 && a->router->per_expert && !ch_route_by_causal(a) && !a->tokens.assignment;
}

/* The router's `route` over ranks. `all` describes all tokens and experts, but its scores [n / ranks, e] are only of
 * this rank's rows. */
void ch_route_sharded(ch_exec *x, const ch_route_args *all);

#endif
