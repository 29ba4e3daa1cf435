/* What the options that all routers with scores share do (score, normalize_gates, gate_on, z_loss_weight): from logits
 * to scores, from scores to gates, and back. A new option of this kind is one line of config/router.def, and its use
 * here. */
#ifndef CH_MOE_GATES_H
#define CH_MOE_GATES_H

#include "moe/router.h"

/* From logits [n,e] of a router to its scores, as options->score says: a softmax over experts or a sigmoid of each. And
 * back: dscores, which become dlogits, by the scores. */
void ch_scores_of(ch_exec *x, const ch_router_spec *o, int64_t n, int e, const real CH_DEV *logits,
                  real CH_DEV *scores);
void ch_scores_of_backward(ch_exec *x, const ch_router_spec *o, int64_t n, int e, real CH_DEV *scores,
                           real CH_DEV *dscores);

/* All below work on a->routing. */

/* Allocates what options need of it. Arrays that only backward reads come from `keep`. */
void ch_gates_alloc(const ch_route_args *a, ch_arena *keep);

/* slot_gate = score. */
void ch_router_gates_from_scores(ch_exec *x, const ch_route_args *a);

/* Backward of slot_gate = score: dscores is dgate where the record has a slot, 0 elsewhere. */
void ch_router_gates_backward(ch_exec *x, const ch_route_args *a);

/* Whether gates are scores and nothing else: their gradients need no more than the token's own. */
static inline int ch_router_gates_are_scores(const ch_router *router) {
  return router->backward == ch_router_gates_backward;
}

/* Changes the router's gates as options say, and back: dgate [slots], in place. */
void ch_gates_change(ch_exec *x, const ch_route_args *a);
void ch_gates_change_backward(ch_exec *x, const ch_route_args *a);

/* Whether gates scale what experts read; else what they write. */
static inline int ch_router_gates_input(const ch_router_spec *o) { return o->gate_on == CH_GATE_INPUT; }

/* Fills lse, if there is one, of tokens first .. first+n-1 from their logits [n,e]. Backward adds the gradient of
 * the z-loss, which counts all tokens of the call, to theirs. */
void ch_route_z_loss(ch_exec *x, const ch_route_args *a, int64_t first, int n, const real CH_DEV *logits);
void ch_route_z_loss_backward(ch_exec *x, const ch_route_args *a, int64_t first, int n, const real CH_DEV *logits,
                              real CH_DEV *dlogits);

#endif
