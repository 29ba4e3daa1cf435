/* A router's scores S: softmax or sigmoid of the logits X Wg, for this rank's rows or for all rows; forward and
 * backward. */
#ifndef CH_MOE_SCORES_H
#define CH_MOE_SCORES_H

#include "moe/args.h"

/* Computes logits [n,e] and, if the router reads scores, scores [n,e] in the routing of s. */
void ch_moe_score(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

/* Backward from dscores [n,e] of this rank's rows, which are overwritten by dlogits (unless they are dlogits already):
 * dWg (=|+=) X^T dlogits, dx += dlogits Wg^T. */
void ch_moe_score_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s, real CH_DEV *dscores);

#endif
