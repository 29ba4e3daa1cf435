/* gemm and expert_gemm with matrices of 8 bits (base/q8.h). A row's bits do not depend on the other rows, the split
 * into tasks or the instruction set. */
#ifndef CH_CPU_THREADED_Q8_H
#define CH_CPU_THREADED_Q8_H

#include "op/op.h"

/* `g` and its chain of `second` products, all with b8. */
void ch_q8_gemm(ch_exec *x, const ch_gemm_args *g);

/* With w8. */
void ch_q8_expert_gemm(ch_exec *x, const ch_expert_gemm_args *g);

#endif
