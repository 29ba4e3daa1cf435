/* A router's scores S: softmax or sigmoid of the logits X Wg, of this rank's rows or of all, and the way back. */
#ifndef CH_MOE_SCORES_H
#define CH_MOE_SCORES_H

#include "moe/args.h"

/* From logits [n,e] of a router to its scores, as options->score says: a softmax over experts or a sigmoid of each. And
 * back: dscores, which become dlogits, by the scores. */
void ch_scores_of(ch_exec *x, const ch_router_spec *o, int64_t n, int e, const real CH_DEV *logits,
                  real CH_DEV *scores);
void ch_scores_of_backward(ch_exec *x, const ch_router_spec *o, int64_t n, int e, real CH_DEV *scores,
                           real CH_DEV *dscores);

/* S of X Wg into s->scores; of a router without scores the logits. */
void ch_moe_score(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

/* From dscores of this rank's rows, which are written over, through the scores (unless they are dlogits already) and X
 * Wg: dWg (=|+=) X^T dlogits, dx += dlogits Wg^T. */
void ch_moe_score_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s, real CH_DEV *dscores);

#endif
