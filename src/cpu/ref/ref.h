/* The reference: every op in plain C, a file for each group: a row a file, with the ops that it puts into the table. */
#ifndef CH_CPU_REF_REF_H
#define CH_CPU_REF_REF_H

#include "cpu/counts.h"
#include "op/backend.h"

/* clang-format off */
#define CH_REF_FILES(row)                                                                          \
  row(gemm)               /* gemm, expert_gemm */                                                  \
  row(attention)                                                                                   \
  row(attention_cached)                                                                            \
  row(rope)                                                                                        \
  row(head)                                                                                        \
  row(pointwise)          /* softmax, copy, multiply, jitter, sumsq, round_bf16, widen_bf16 */     \
  row(gelu)               /* activate */                                                           \
  row(norm)               /* rmsnorm */                                                            \
  row(dropout)                                                                                     \
  row(gather)             /* gather, combine, embedding */                                         \
  row(select)                                                                                      \
  row(choices)            /* best, draw, sample_second, place */                                   \
  row(threshold)          /* follow, threshold, within, mean_cutoff, running_mean, price, nudge */ \
  row(gate)               /* gate, normalize_gates, balance */                                     \
  row(record)             /* collect, loads, index, part, tally */                                 \
  row(kmeans)             /* half_squares, kmeans */                                               \
  row(exchange)                                                                                    \
  row(dykstra)                                                                                     \
  row(adafactor)                                                                                   \
  row(adamw)
/* clang-format on */

#define CH_REF_DECLARE(name) void ch_ref_fill_##name(ch_ops *ops);
CH_REF_FILES(CH_REF_DECLARE)

/* Rows begin .. end-1 of a gemm's C, on one thread. */
void ch_ref_gemm_rows(const ch_gemm_args *a, int64_t begin, int64_t end);

#endif
