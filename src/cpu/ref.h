/* Parts of the reference table. */
#ifndef CH_CPU_REF_H
#define CH_CPU_REF_H

#include "op/op.h"

void ch_ref_fill_products(ch_ops *ops);   /* ref_products.c ref_attention.c ref_head.c: gemm, expert_gemm, attention, head */
void ch_ref_fill_pointwise(ch_ops *ops);  /* ref_pointwise.c: softmax, gelu, geglu, embedding, add, sumsq, round_bf16 */
void ch_ref_fill_norm(ch_ops *ops);       /* ref_norm.c: rmsnorm */
void ch_ref_fill_routing(ch_ops *ops);    /* ref_routing.c: gather, combine, select, index */
void ch_ref_fill_optimizers(ch_ops *ops); /* ref_optimizers.c: adafactor, adamw */

#endif
