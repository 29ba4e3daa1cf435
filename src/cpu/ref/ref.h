/* The reference: every op in plain C, a file for each group; what each file puts into the table. */
#ifndef CH_CPU_REF_REF_H
#define CH_CPU_REF_REF_H

#include "cpu/counts.h"
#include "op/backend.h"

void ch_ref_fill_gemm(ch_ops *ops); /* gemm, expert_gemm */
void ch_ref_fill_attention(ch_ops *ops);
void ch_ref_fill_attention_cached(ch_ops *ops);
void ch_ref_fill_rope(ch_ops *ops);
void ch_ref_fill_head(ch_ops *ops);
void ch_ref_fill_pointwise(ch_ops *ops); /* softmax, copy, multiply, jitter, sumsq, round_bf16, widen_bf16 */
void ch_ref_fill_gelu(ch_ops *ops);      /* activate */
void ch_ref_fill_norm(ch_ops *ops);      /* rmsnorm */
void ch_ref_fill_dropout(ch_ops *ops);
void ch_ref_fill_gather(ch_ops *ops); /* gather, combine, embedding */
void ch_ref_fill_select(ch_ops *ops);
void ch_ref_fill_choices(ch_ops *ops);   /* best, draw, sample_second, place */
void ch_ref_fill_threshold(ch_ops *ops); /* follow, threshold, within, mean_cutoff, running_mean, price, nudge */
void ch_ref_fill_gate(ch_ops *ops);      /* gate, normalize_gates, balance */
void ch_ref_fill_record(ch_ops *ops);    /* collect, loads, index, part, tally */
void ch_ref_fill_kmeans(ch_ops *ops);    /* half_squares, kmeans */
void ch_ref_fill_exchange(ch_ops *ops);
void ch_ref_fill_dykstra(ch_ops *ops);
void ch_ref_fill_adafactor(ch_ops *ops);
void ch_ref_fill_adamw(ch_ops *ops);

/* Rows begin .. end-1 of a gemm's C, on one thread. */
void ch_ref_gemm_rows(const ch_gemm_args *a, int64_t begin, int64_t end);

#endif
