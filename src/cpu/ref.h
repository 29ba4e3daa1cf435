/* Parts of the reference table. */
#ifndef CH_CPU_REF_H
#define CH_CPU_REF_H

#include "op/op.h"

void ch_ref_fill_products(
    ch_ops *ops); /* ref_products.c ref_attention.c ref_head.c: gemm, expert_gemm, attention, head */
void ch_ref_fill_pointwise(ch_ops *ops);  /* ref_pointwise.c: softmax, gelu, geglu, embedding, add, sumsq, round_bf16 */
void ch_ref_fill_norm(ch_ops *ops);       /* ref_norm.c: rmsnorm */
void ch_ref_fill_routing(ch_ops *ops);    /* ref_routing.c: gather, combine, select, index */
void ch_ref_fill_assign(ch_ops *ops);     /* ref_assign.c: exchange, dykstra */
void ch_ref_fill_optimizers(ch_ops *ops); /* ref_optimizers.c: adafactor, adamw */

void ch_ref_fill_attention(ch_ops *ops); /* called by ch_ref_fill_products */
void ch_ref_fill_attention_cached(ch_ops *ops);
void ch_ref_fill_head(ch_ops *ops);

/* Rows begin .. end-1 of a gemm's C, on one thread. */
void ch_ref_gemm_rows(const ch_gemm_args *a, int64_t begin, int64_t end);

#endif
