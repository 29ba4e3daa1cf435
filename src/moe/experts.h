/* The experts: Y[s] = GELU(X_in[s] W1[i]) W2[i]^T for the slots s of every expert i of this rank, on rows that are
 * dispatched. */
#ifndef CH_MOE_EXPERTS_H
#define CH_MOE_EXPERTS_H

#include "moe/args.h"

/* y [slots,d], in place of the dispatched rows that stand there; pre [slots,h] keeps the pre-activations. */
void ch_experts_forward(ch_exec *x, const ch_moe_args *a, const ch_exchange *ex, real CH_DEV *pre, real CH_DEV *y);

/* dx_in [slots,d] in place of dy, and weight gradients (=|+=). Writes over dy and pre: experts' activations are the
 * largest arrays of a model, so one more [slots,h] is all it takes from scratch, and in bf16 another of half the size
 * and a rounded dy. */
void ch_experts_backward(ch_exec *x, const ch_moe_args *a, const ch_exchange *ex, real CH_DEV *pre, real CH_DEV *dy);

#endif
