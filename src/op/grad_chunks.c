#include "op/grad_chunks.h"

#include <string.h>

typedef struct {
  const ch_sum *sum;
  int count;
  ch_grad_chunk_part *part;
  void *context;
} chunk_task;

static void new_arrays(ch_exec *x, const chunk_task *t, real CH_DEV **y) {
  for (int i = 0; i < t->count; i++) y[i] = CH_NEW(&x->scratch, real, t->sum[i].count);
}

static void add_arrays(ch_exec *x, const chunk_task *t, real CH_DEV *const *from, real CH_DEV *const *y) {
  for (int i = 0; i < t->count; i++) CH_OP(x, copy, .count = t->sum[i].count, .x = from[i], .y = y[i], .accumulate = 1);
}

/* y = the sum over gradient chunks lo .. hi-1, as a binary tree. */
static void sum_tree(ch_exec *x, const chunk_task *t, int lo, int hi, real CH_DEV *const *y) {
  if (hi - lo == 1) {
    for (int i = 0; i < t->count; i++)
      if (t->sum[i].adds) CH_OP(x, copy, .count = t->sum[i].count, .y = y[i]);
    t->part(x, t->context, lo, y, 0);
    return;
  }
  int mid = (lo + hi) / 2;
  sum_tree(x, t, lo, mid, y);
  CH_SCRATCH(x);
  real CH_DEV *right[CH_SUMS];
  new_arrays(x, t, right);
  sum_tree(x, t, mid, hi, right);
  add_arrays(x, t, right, y);
}

/* Sums this rank's subtree of gradient chunks, then over ranks, into total[0 .. count-1], one array per sum. */
static void sum_ranks(ch_exec *x, const chunk_task *t, int local, real CH_DEV *const *total) {
  const ch_comm *comm = x->comm;
  int grad_chunks = local * comm->size;
  ch_piece pieces[CH_SUM_PIECES];
  int count = ch_comm_pieces(grad_chunks, comm->rank, comm->size, pieces);
  real CH_DEV *y[CH_SUM_PIECES][CH_SUMS];
  for (int i = 0; i < count; i++) {
    if (i == 0)
      memcpy(y[i], total, sizeof y[i]);
    else
      new_arrays(x, t, y[i]);
    sum_tree(x, t, pieces[i].lo - local * comm->rank, pieces[i].hi - local * comm->rank, y[i]);
  }
  real *piece[CH_SUMS][CH_SUM_PIECES];
  ch_receivers owners[CH_SUMS];
  ch_comm_array array[CH_SUMS];
  for (int j = 0; j < t->count; j++) {
    const ch_sum *sum = &t->sum[j];
    for (int i = 0; i < count; i++) piece[j][i] = CH_HOST_OR_DEVICE(y[i][j]);
    owners[j] = (ch_receivers){sum->owner, x->grid.replica.size};
    array[j] = (ch_comm_array){piece[j], sum->count, sum->count, sum->sharded ? &owners[j] : NULL};
  }
  ch_comm_sum_in(&ch_host(x)->scratch, comm, "gradients", grad_chunks, array, t->count);
}

void ch_sum_grad_chunks(ch_exec *x, int grad_chunks, const ch_sum *sum, int count, int accumulate,
                        ch_grad_chunk_part *part, void *context) {
  chunk_task t = {sum, count, part, context};
  CH_SCRATCH(x);
  real CH_DEV *y[CH_SUMS], *total[CH_SUMS] = {0};
  for (int i = 0; i < count; i++) y[i] = sum[i].y;
  if (grad_chunks * x->comm->size == 1) {
    part(x, context, 0, y, accumulate);
    return;
  }
  new_arrays(x, &t, total);
  if (x->comm->size == 1)
    sum_tree(x, &t, 0, grad_chunks, total);
  else
    sum_ranks(x, &t, grad_chunks, total);
  for (int i = 0; i < count; i++)
    if (!sum[i].sharded || sum[i].owner == x->grid.replica.rank)
      CH_OP(x, copy, .count = sum[i].count, .x = total[i], .y = y[i], .accumulate = accumulate || sum[i].adds);
}
