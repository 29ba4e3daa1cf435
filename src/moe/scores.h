/* What the router reads, and its scores: softmax(X Wg) of this rank's rows, or of all, with the way back. */
#ifndef CH_MOE_SCORES_H
#define CH_MOE_SCORES_H

#include "moe/args.h"

/* Whether the router's input is jittered. */
static inline int ch_moe_jitters(const ch_moe_args *a) { return a->route.training && a->route.options->jitter > 0; }

/* Tokens of this rank, and the first of them. */
static inline int ch_moe_rows(const ch_exec *x, const ch_moe_args *a) { return a->route.n / x->comm->size; }
static inline int64_t ch_moe_first_token(const ch_exec *x, const ch_moe_args *a) {
  return (int64_t)ch_moe_rows(x, a) * x->comm->rank;
}

/* S = softmax(X Wg) into s->scores; of a router without scores the logits. */
void ch_moe_score(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

/* From dscores of this rank's rows, which are written over, through softmax (unless they are dlogits already) and X Wg:
 * dWg (=|+=) X^T dlogits, dx += dlogits Wg^T. */
void ch_moe_score_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s, real CH_DEV *dscores);

#endif
