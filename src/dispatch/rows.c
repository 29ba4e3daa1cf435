/* Packing of sent rows: messages are ordered by rank, experts read rows in slot order. */
#include "dispatch/exchange.h"

int64_t ch_row_bytes(const ch_exec *x, int d) {
  return d * (int64_t)(x->dispatch_dtype == CH_COMPUTE_BF16 ? sizeof(ch_bf16) : sizeof(real));
}

char CH_DEV *ch_rows_of_shard(const ch_exec *x, const ch_dispatch *ex, int shard) {
  if (!shard) return (char CH_DEV *)ex->local_rows;
  return ex->partial + (int64_t)(shard - 1) * ex->max_rows * ch_row_bytes(x, ex->d);
}

void ch_local_spans(const ch_exec *x, const ch_dispatch *ex, int group, int back, ch_bytes *span) {
  int64_t bytes = ch_row_bytes(x, ex->d);
  for (int r = 0; r < x->grid.replica.size; r++) {
    ch_range some = ch_group_of(x, ex, r, group);
    int64_t before = ch_slots_at(ex, x->comm->rank, (ch_range){0, some.first});
    char *rows = CH_HOST_OR_DEVICE(ch_rows_of_shard(x, ex, back ? r % x->grid.tp_group.size : 0));
    span[r] = (ch_bytes){rows + before * bytes, ch_slots_at(ex, x->comm->rank, some) * bytes};
  }
}

void ch_owned_spans(const ch_comm *ranks, const ch_dispatch *ex, ch_range some, int64_t bytes, void *rows,
                    ch_bytes *span) {
  char *at = rows;
  for (int r = 0; r < ranks->size; r++) {
    span[r] = (ch_bytes){at, ch_slots_at(ex, ch_comm_number(ranks, r), some) * bytes};
    at += span[r].bytes;
  }
}

/* Converts `count` values to the dispatch dtype, or back if `arrive`. */
static void convert(ch_exec *x, ch_compute dispatch_dtype, int64_t count, real CH_DEV *value, char CH_DEV *travelling,
                    int arrive) {
  if (dispatch_dtype == CH_COMPUTE_FP32)
    CH_OP(x, copy, .count = count, .x = arrive ? (real CH_DEV *)travelling : value,
          .y = arrive ? value : (real CH_DEV *)travelling);
  else if (arrive)
    CH_OP(x, widen_bf16, .count = count, .x = (ch_bf16 CH_DEV *)travelling, .y = value);
  else
    CH_OP(x, round_bf16, .count = count, .x = value, .y = (ch_bf16 CH_DEV *)travelling);
}

void ch_rows_reorder(ch_exec *x, const ch_comm *ranks, const ch_dispatch *ex, ch_range some, int d,
                     ch_compute dispatch_dtype, real CH_DEV *by_slot, char CH_DEV *by_rank, int to_slots) {
  if (ch_counting(x)) return; /* in a rehearsal the rows' owners are unknown */
  int64_t at[CH_RANKS], next = 0, bytes = dispatch_dtype == CH_COMPUTE_BF16 ? sizeof(ch_bf16) : sizeof(real);
  for (int r = 0; r < ranks->size; next += ch_slots_at(ex, ch_comm_number(ranks, r++), some) * d) at[r] = next;
  for (int i = some.first; i < some.last; i++)
    for (int r = 0; r < ranks->size; r++) {
      int64_t count = ch_slots_at(ex, ch_comm_number(ranks, r), (ch_range){i, i + 1}) * d;
      if (count) convert(x, dispatch_dtype, count, by_slot, by_rank + at[r] * bytes, to_slots);
      by_slot += count;
      at[r] += count;
    }
}

char CH_DEV *ch_rows_of_group(const ch_exec *x, const ch_dispatch *ex, int group, void CH_DEV *rows) {
  return (char CH_DEV *)rows + ex->group[group].slot * ch_row_bytes(x, ex->d);
}
