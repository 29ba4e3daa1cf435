/* Ops made of products, which distribute their own work to threads: the functions that add each file's ops to the
 * table. Float only. */
#ifndef CH_CPU_THREADED_THREADED_H
#define CH_CPU_THREADED_THREADED_H

#include "op/op.h"

void ch_threaded_fill_gemm(ch_ops *ops, ch_compute compute); /* gemm, expert_gemm */
void ch_threaded_fill_attention(ch_ops *ops);
void ch_threaded_fill_attention_cached(ch_ops *ops);
void ch_threaded_fill_head(ch_ops *ops);

#endif
