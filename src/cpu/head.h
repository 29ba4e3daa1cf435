/* What both heads of the CPU share, the reference and the fast one. */
#ifndef CH_CPU_HEAD_H
#define CH_CPU_HEAD_H

#include "op/op.h"

/* What a row of the batch weighs in the loss: its own weight, or 1. */
static inline double ch_row_weight(const ch_head_args *a, int64_t row) {
  return a->row_weight ? (double)a->row_weight[row] : 1;
}

#endif
