/* The attention half of a layer. */
#ifndef CH_MODEL_ATTENTION_H
#define CH_MODEL_ATTENTION_H

#include "model/transformer.h"

/* out = in + Attn(RMSNorm(in)); `in` [n,d] stays. Backward: dx [n,d] is updated in place from the gradient of the
 * half's output to that of its input. */
void ch_attention_forward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, const real CH_DEV *in,
                          real CH_DEV *out);
void ch_attention_backward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, real CH_DEV *dx);

/* The first part of the attention half, on the rows of a pass: b's qh [n,width], kh and vh [n,kv_width] of RMSNorm(in),
 * whose rstd1 [n] stays for backward. */
void ch_attention_in(ch_exec *x, const ch_transformer *m, const ch_block *b, int64_t n, const real CH_DEV *in);

/* Its second part: queries and keys as scores take them, normalised by head or all heads together and turned by their
 * position, as the config says. Without a norm they are turned where they stand; with one, its results are in scratch.
 */
typedef struct ch_queries {
  real CH_DEV *q, *k;
  ch_rmsnorm_args q_norm, k_norm; /* as they ran, for backward */
} ch_queries;
ch_queries ch_attention_queries(ch_exec *x, const ch_transformer *m, const ch_block *b, const ch_pass *p);

/* Fills the rotations of rope by position, [positions,rotated]. */
void ch_rope_turn(ch_exec *x, const ch_transformer *m, int positions, real CH_DEV *turn);

#endif
