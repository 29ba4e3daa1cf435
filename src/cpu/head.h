/* Shared by both CPU heads, the reference and the fast one. */
#ifndef CH_CPU_HEAD_H
#define CH_CPU_HEAD_H

#include "op/op.h"

/* Weight of a row in the loss: row_weight, or 1 without it. */
static inline double ch_row_weight(const ch_head_args *a, int64_t row) {
  return a->row_weight ? (double)a->row_weight[row] : 1;
}

#endif
