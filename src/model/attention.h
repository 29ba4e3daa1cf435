/* The attention half of a layer. */
#ifndef CH_MODEL_ATTENTION_H
#define CH_MODEL_ATTENTION_H

#include "model/transformer.h"

/* out = in + Attn(RMSNorm(in)); `in` [n,d] stays. Backward: dx [n,d] is updated in place from the gradient of the
 * half's output to that of its input. */
void ch_attention_forward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, const real CH_DEV *in,
                          real CH_DEV *out);
void ch_attention_backward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, real CH_DEV *dx);

/* The first part of the attention half: q, k, v [n,width] of RMSNorm(in), whose rstd [n] stays for backward. */
void ch_attention_in(ch_exec *x, const ch_transformer *m, const ch_block *b, int64_t n, const real CH_DEV *in,
                     real CH_DEV *rstd, real CH_DEV *q, real CH_DEV *k, real CH_DEV *v);

#endif
