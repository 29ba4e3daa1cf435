/* From scores to a routing record, and back: the one way, for a layer and for a caller's matrix of scores alike. */
#ifndef CH_MOE_ROUTE_H
#define CH_MOE_ROUTE_H

#include "moe/router.h"

/* The result of a routing. Record, counts and tally are on the tape always, so that they can be looked at after an
 * evaluation too; the rest is for backward. */
typedef struct ch_routing {
  ch_record record;
  ch_route_counts counts;
  ch_route_tally tally;
  real CH_DEV *gate_sum;        /* [n] of each token's gates before they were scaled, or NULL: they were not */
  real CH_DEV *logits, *scores; /* [n,e] or NULL: the router reads neither; of several ranks' tokens this one's alone
                                   are logits behind scores, and scores where experts choose at their owners */
} ch_routing;

/* Memory for all but logits and scores, which are the caller's; what only backward reads from `keep`. */
void ch_routing_alloc(ch_exec *x, const ch_route_args *a, ch_arena *keep, ch_routing *r);

/* Routes r->scores, or r->logits: the record with its index, gates normalized where options say so, counts, tally; and
 * folds what it saw into a->state. */
void ch_route(ch_exec *x, const ch_route_args *a, ch_routing *r);

/* An array of all ranks' rows, `count` numbers each, of which every rank has written its own: all of it on all. */
void ch_route_gather(const ch_exec *x, const char *what, real CH_DEV *all, int64_t count);

/* The router's `route` alone, on the host where it belongs there: a->record but for its index, and a->counts. */
void ch_route_only(ch_exec *x, const ch_route_args *a);

/* dscores [n,e] = the gradient of what the router read, from that of gates [slots], which is written over. Where gates
 * are scores, a record of some of the tokens will do, with a->n, and gate_sum that of its tokens. */
void ch_route_backward(ch_exec *x, const ch_route_args *a, const ch_routing *r, real CH_DEV *dgate,
                       real CH_DEV *dscores);

/* ---- routing at owners ----
 * Where experts choose by their own scores alone, each chooses on one rank: where it lives, or with several replicas
 * (comm/grid.h) on one of all, its owner here, so that all ranks have as many to choose for. The scores of a rank's
 * tokens go to the experts' owners, one exchange of fixed size; there the router runs unchanged on all tokens and its
 * own experts, and what these took comes back to everybody. Ranks stand in the order of their tokens, so that equal
 * scores fall as they do on one process. */
enum { CH_CHOSEN_EXPERT_BYTES = 32, CH_CHOSEN_SLOT_BYTES = 8 }; /* that everybody hears of an expert, and of a slot */

/* Whether a call runs so: there are several ranks, and the router can. */
static inline int ch_routes_at_owners(const ch_exec *x, const ch_route_args *a) {
  return x->comm->size > 1 && a->router->choose_alone && !ch_route_by_causal(a);
}

/* The router's `route` over ranks: `all` is about all tokens and experts, but for its scores, which are those of this
 * rank's tokens: [n / ranks, e]. */
void ch_route_at_owners(ch_exec *x, const ch_route_args *all);

#endif
