/* Implements the options that all routers with scores share (score, normalize_gates, gate_on, z_loss_weight), forward
 * and backward. A new option of this kind is one line of config/router.def, and its implementation here. */
#ifndef CH_MOE_GATES_H
#define CH_MOE_GATES_H

#include "moe/router.h"

/* Computes scores [n,e] from logits [n,e]: a softmax over experts or a sigmoid of each logit, by options->score.
 * Backward replaces dscores by dlogits. */
void ch_scores_of(ch_exec *x, const ch_router_spec *o, int64_t n, int e, const real CH_DEV *logits,
                  real CH_DEV *scores);
void ch_scores_of_backward(ch_exec *x, const ch_router_spec *o, int64_t n, int e, real CH_DEV *scores,
                           real CH_DEV *dscores);

/* The functions below read and write a->routing. */

/* Allocates the arrays of a->routing that the options need. Arrays that only backward reads come from `keep`. */
void ch_gates_alloc(const ch_route_args *a, ch_arena *keep);

/* slot_gate = score. */
void ch_router_gates_from_scores(ch_exec *x, const ch_route_args *a);

/* Backward of slot_gate = score: dscores is dgate where the record has a slot, 0 elsewhere. */
void ch_router_gates_backward(ch_exec *x, const ch_route_args *a);

/* Whether gates are plain scores, whose gradients depend on the same token only. */
static inline int ch_router_gates_are_scores(const ch_router *router) {
  return router->backward == ch_router_gates_backward;
}

/* Applies the gate options to the router's gates; backward transforms dgate [slots] in place. */
void ch_gates_change(ch_exec *x, const ch_route_args *a);
void ch_gates_change_backward(ch_exec *x, const ch_route_args *a);

/* Whether gates scale the experts' inputs; otherwise they scale the outputs. */
static inline int ch_router_gates_input(const ch_router_spec *o) { return o->gate_on == CH_GATE_INPUT; }

/* Sets lse of tokens first .. first+n-1 from their logits [n,e], unless it is NULL. Backward adds the gradient of the
 * z-loss, a mean over all tokens of the call, to the gradients of these logits. */
void ch_route_z_loss(ch_exec *x, const ch_route_args *a, int64_t first, int n, const real CH_DEV *logits);
void ch_route_z_loss_backward(ch_exec *x, const ch_route_args *a, int64_t first, int n, const real CH_DEV *logits,
                              real CH_DEV *dlogits);

#endif
