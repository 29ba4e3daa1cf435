/* Sums over gradient chunks. The rows of a micro-batch are divided into chunks of whole sequences (train.grad_chunks).
 * A sum over all rows, such as the gradient of a replicated weight, is a sum over chunks in a fixed binary tree:
 *
 *   sum(lo, hi) = sum(lo, mid) + sum(mid, hi), mid = (lo + hi) / 2
 *
 * A chunk's summand is computed from the chunk's rows only. So sums are bit-identical for any assignment of chunks to
 * processes. With several processes (x->comm) each has the same number of chunks, and either all processes get the sum
 * or only its owners do. */
#ifndef CH_OP_GRAD_CHUNKS_H
#define CH_OP_GRAD_CHUNKS_H

#include "comm/collective.h"
#include "op/op.h"

/* One array to sum. */
typedef struct ch_sum {
  real CH_DEV *y;
  int64_t count;
  int adds; /* 1: `part` always adds to its array, which is zeroed before; 0: it sets or adds, by `accumulate` */
  int sharded, owner; /* sharded 1: only rank `owner` of each replica has y and gets the sum */
} ch_sum;

/* Computes one chunk's summand of every sum into y[i] (added to it if `accumulate`). */
typedef void ch_grad_chunk_part(ch_exec *x, void *context, int shard, real CH_DEV *const *y, int accumulate);

/* sum[i].y (=|+=) the sum over chunks of `part`, which is called for each chunk of this process; with a single chunk
 * `part` writes to sum[i].y directly. Arrays with `adds` always accumulate, and must be cleared at the beginning of a
 * step. count: at most CH_SUMS. */
enum { CH_SUMS = CH_AT_ONCE };
void ch_sum_grad_chunks(ch_exec *x, int grad_chunks, const ch_sum *sum, int count, int accumulate,
                        ch_grad_chunk_part *part, void *context);

#endif
