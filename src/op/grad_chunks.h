/* Sums over shards. The rows of a micro-batch are in shards of whole sequences (train.grad_chunks), and what sums over
 * all rows, the gradient of a weight that every process has, is a sum over shards in a fixed binary tree:
 *
 *   sum(lo, hi) = sum(lo, mid) + sum(mid, hi), mid = (lo + hi) / 2
 *
 * A shard's part is computed from the shard's rows alone. So no bit depends on the assignment of shards to processes:
 * one process and several give the same sum. With several processes (x->comm) each has equally many shards, and either
 * all processes get the sum or only its owners do. */
#ifndef CH_OP_GRAD_CHUNKS_H
#define CH_OP_GRAD_CHUNKS_H

#include "comm/collective.h"
#include "op/op.h"

/* One array that is summed. */
typedef struct ch_sum {
  real CH_DEV *y;
  int64_t count;
  int adds;           /* the part adds to its array, which begins as zeros; else it sets or adds to it as it is told */
  int sharded, owner; /* sharded: only rank `owner` of each replica gets the sum and has a y */
} ch_sum;

/* One shard's part of every sum, into (accumulate: added to) y[i]. */
typedef void ch_grad_chunk_part(ch_exec *x, void *context, int shard, real CH_DEV *const *y, int accumulate);

/* sum[i].y (=|+=) the sum over shards of what `part` gives for each of this process's `shards`; with one in all, `part`
 * works on sum[i].y itself. Arrays with `adds` are added to in any case: who begins a step clears them. count: CH_SUMS
 * at most. */
enum { CH_SUMS = CH_AT_ONCE };
void ch_sum_grad_chunks(ch_exec *x, int grad_chunks, const ch_sum *sum, int count, int accumulate,
                        ch_grad_chunk_part *part, void *context);

#endif
