/* Parts of the fast table. Float only. */
#ifndef CH_CPU_FAST_H
#define CH_CPU_FAST_H

#include "op/op.h"

void ch_fast_fill_products(ch_ops *ops, ch_compute compute); /* oneDNN gemm and expert_gemm, blocked attention, head */
void ch_fast_fill_pointwise(ch_ops *ops);
void ch_fast_fill_routing(ch_ops *ops);
void ch_fast_fill_optimizers(ch_ops *ops);

void ch_fast_fill_attention(ch_ops *ops); /* called by ch_fast_fill_products */
void ch_fast_fill_attention_cached(ch_ops *ops);
void ch_fast_fill_head(ch_ops *ops);

#endif
