/* The last norm and the head. */
#ifndef CH_MODEL_HEAD_H
#define CH_MODEL_HEAD_H

#include "model/transformer.h"

/* The last norm and the head: loss, logits, and in dx the gradient of the last layer's output. */
void ch_head(ch_exec *x, const ch_transformer *m, const ch_pass *p, const real CH_DEV *in, real CH_DEV *dx);

/* The same for logits [n,V] alone, of n rows that inference puts together: one product, which the executor may be told
 * to do row by row (ch_exec's batch_invariant), so that no row's logits depend on the others. */
void ch_logits(ch_exec *x, const ch_transformer *m, int64_t n, const real CH_DEV *in, real CH_DEV *logits);

/* Weight of the loss of disagreement between two predictions, for each of the pairs that have a target. */
double ch_consistency_weight(ch_exec *x, const ch_transformer *m, const ch_pass *p);

#endif
