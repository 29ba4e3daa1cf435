/* The feed-forward half of a layer: MoE or dense. */
#ifndef CH_MODEL_FFN_H
#define CH_MODEL_FFN_H

#include "model/transformer.h"

/* As the attention half (attention.h): out = in + FFN(RMSNorm(in)). */
void ch_ffn_forward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, const real CH_DEV *in,
                    real CH_DEV *out);
void ch_ffn_backward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, real CH_DEV *dx);

#endif
