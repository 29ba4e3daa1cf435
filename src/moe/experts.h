/* The experts of a rank: Y[s] = act(X_in[s] W1[i]) W2[i]^T, or of gated experts (act(X_in[s] W1[i]) * (X_in[s] W3[i]))
 * W2[i]^T, for the slots s of every expert i of this rank, on rows that are on their way (dispatch/dispatch.h): one
 * group of experts after the other, as rows arrive, and their results go back at once. */
#ifndef CH_MOE_EXPERTS_H
#define CH_MOE_EXPERTS_H

#include "moe/args.h"

/* Room for h numbers of so many slots, in the type that x computes in; of gated experts always floats. */
ch_operand ch_hidden_new(const ch_exec *x, const ch_moe_args *a, ch_arena *arena, int64_t slots);

/* Between `dispatch` and `combine`; s->pre keeps the pre-activations. */
void ch_experts_forward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

/* Between `begin_backward` and `combine_backward`, where that asked for it: the same Y from pre. It needs less scratch
 * than backward. */
void ch_experts_recompute(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

/* Between `combine_backward` and `combine`: weight gradients (=|+=), and gradients of rows in place
 * of dy. Writes over pre and up: experts' activations are the largest arrays of a model, so one more [slots,h] of a
 * group is all it takes from scratch, and in bf16 a rounded dy. */
void ch_experts_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

#endif
