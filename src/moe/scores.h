/* A router's scores S: softmax or sigmoid of the logits X Wg, of this rank's rows or of all, and the way back. */
#ifndef CH_MOE_SCORES_H
#define CH_MOE_SCORES_H

#include "moe/args.h"

/* S of X Wg into s->scores; of a router without scores the logits. */
void ch_moe_score(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

/* From dscores of this rank's rows, which are written over, through the scores (unless they are dlogits already) and X
 * Wg: dWg (=|+=) X^T dlogits, dx += dlogits Wg^T. */
void ch_moe_score_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s, real CH_DEV *dscores);

#endif
