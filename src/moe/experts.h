/* The experts of a rank: Y[s] = act(X_in[s] W1[i]) W2[i]^T, or of gated experts (act(X_in[s] W1[i]) * (X_in[s] W3[i]))
 * W2[i]^T, for the slots s of every expert i of this rank. Groups of experts are processed one after the other, as
 * their rows arrive (dispatch/dispatch.h), and the results of each group are sent back immediately. */
#ifndef CH_MOE_EXPERTS_H
#define CH_MOE_EXPERTS_H

#include "moe/args.h"

/* Allocates [slots,h], in the compute type of x; for gated experts always floats. */
ch_operand ch_hidden_new(const ch_exec *x, const ch_moe_args *a, ch_arena *arena, int64_t slots);

/* Computes Y; to be called between `dispatch` and `combine`. Saves the pre-activations in s->pre. */
void ch_experts_forward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

/* Recomputes Y from pre, if `begin_backward` requested it; to be called before `combine_backward`. Needs less scratch
 * than backward. */
void ch_experts_recompute(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

/* Computes weight gradients (=|+=), and replaces dy by the gradients of the input rows; to be called between
 * `combine_backward` and `dispatch_backward`. Overwrites pre and up: because the experts' activations are the largest
 * arrays of a model, scratch only holds one [slots,h] of a group and, in bf16, a rounded dy. */
void ch_experts_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

#endif
