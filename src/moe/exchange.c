#include "moe/exchange.h"

#include <string.h>

#include "comm/collective.h"
#include "moe/router.h"

/* The experts of a rank are first .. last-1. */
typedef struct {
  int first, last;
} run;

static run experts_of(const ch_exec *x, int e, int rank) {
  return (run){(int)ch_share(e, rank, x->comm->size), (int)ch_share(e, rank + 1, x->comm->size)};
}

static int least(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

void ch_exchange_alloc(ch_exec *x, ch_arena *a, int n, int e, int max_slots, int most, ch_exchange *ex) {
  run own = experts_of(x, e, x->comm->rank);
  int experts = own.last - own.first, ranks = x->comm->size;
  *ex = (ch_exchange){.n = n, .e = e};
  if (ranks == 1) return;
  ch_record_alloc(a, &ex->local, n, e, least(max_slots, (int64_t)n * e));
  ex->owned = (ch_record){.experts = experts, .max_slots = least(max_slots, (int64_t)most * experts)};
  ex->owned.expert_begin = CH_NEW(a, int, experts + 1);
  ex->slots = CH_NEW_HOST(a, int64_t, (int64_t)ranks * e);
}

/* Who has how many slots of whom, and the view of this rank's experts. */
static void count_slots(ch_exec *x, const ch_record *all, int begin, ch_exchange *ex) {
  const int *expert_begin = CH_AS_HOST(const int, all->expert_begin), *token = CH_AS_HOST(const int, all->slot_token);
  run own = experts_of(x, ex->e, x->comm->rank);
  memset(ex->slots, 0, (size_t)x->comm->size * (size_t)ex->e * sizeof *ex->slots);
  for (int i = 0; i < ex->e; i++)
    for (int s = expert_begin[i]; s < expert_begin[i + 1]; s++)
      ex->slots[(int64_t)((begin + token[s]) / ex->n) * ex->e + i]++;
  int *to = CH_AS_HOST(int, ex->owned.expert_begin);
  for (int i = own.first; i <= own.last; i++) to[i - own.first] = expert_begin[i] - expert_begin[own.first];
  ex->owned.load = all->load;
}

void ch_exchange_split(ch_exec *x, const ch_record *all, int begin, ch_exchange *ex) {
  if (!ex->slots) {
    ex->local = ex->owned = *all;
    ex->first_row = begin;
    return;
  }
  int64_t first = (int64_t)x->comm->rank * ex->n, lo = begin > first ? begin : first, end = begin + all->tokens;
  int64_t hi = end < first + ex->n ? end : first + ex->n;
  if (hi < lo) hi = lo = first; /* it is about others' tokens */
  ex->first_row = (int)(lo - first);
  ex->local.tokens = ch_counting(x) ? ex->n : (int)(hi - lo);
  x->ops->part(x,
               &(ch_part_args){.all = all, .begin = (int)(lo - begin), .end = (int)(hi - begin), .part = &ex->local});
  x->ops->index(x, &(ch_index_args){.record = &ex->local});
  if (!ch_counting(x)) count_slots(x, all, begin, ex);
}

/* ---- rows on their way ---- */

/* Slots of the rank's tokens at the experts first .. last-1. */
static int64_t slots_at(const ch_exchange *ex, int rank, run at) {
  int64_t sum = 0;
  for (int i = at.first; i < at.last; i++) sum += ex->slots[(int64_t)rank * ex->e + i];
  return sum;
}

/* The rows of this rank's tokens, in the order of the local view, by their experts' owners. */
static void local_spans(const ch_exec *x, const ch_exchange *ex, int64_t bytes, const void *rows, ch_bytes *span) {
  char *at = (char *)(uintptr_t)rows;
  for (int r = 0; r < x->comm->size; r++) {
    span[r] = (ch_bytes){at, slots_at(ex, x->comm->rank, experts_of(x, ex->e, r)) * bytes};
    at += span[r].bytes;
  }
}

/* The rows of the experts first .. last-1, by the owners of the tokens. */
static void owned_spans(const ch_exec *x, const ch_exchange *ex, run own, int64_t bytes, const void *rows,
                        ch_bytes *span) {
  char *at = (char *)(uintptr_t)rows;
  for (int r = 0; r < x->comm->size; r++) {
    span[r] = (ch_bytes){at, slots_at(ex, r, own) * bytes};
    at += span[r].bytes;
  }
}

/* Between rows in the order of slots, expert by expert, and the same by the owners of their tokens. */
static void reorder(const ch_exec *x, const ch_exchange *ex, run own, int64_t bytes, char *by_slot, char *by_rank,
                    int to_slots) {
  ch_bytes span[CH_RANKS];
  owned_spans(x, ex, own, bytes, by_rank, span);
  for (int i = own.first; i < own.last; i++)
    for (int r = 0; r < x->comm->size; r++) {
      int64_t size = ex->slots[(int64_t)r * ex->e + i] * bytes;
      memcpy(to_slots ? by_slot : span[r].at, to_slots ? span[r].at : by_slot, (size_t)size);
      by_slot += size;
      span[r].at = (char *)span[r].at + size;
    }
}

/* How many slots are filled: only the device knows. */
static const int CH_DEV *filled(const ch_record *r) { return r->expert_begin + r->experts; }

static void round_rows(ch_exec *x, const ch_record *r, int d, const real CH_DEV *rows, ch_bf16 CH_DEV *rounded) {
  x->ops->round_bf16(x, &(ch_round_args){.count = d, .rows = filled(r), .x = rows, .y = rounded});
}

static void widen_rows(ch_exec *x, const ch_record *r, int d, const ch_bf16 CH_DEV *rounded, real CH_DEV *rows) {
  x->ops->widen_bf16(x, &(ch_widen_args){.count = d, .rows = filled(r), .x = rounded, .y = rows});
}

/* Rows between the local view and the owned one, in the type that they travel in. */
static void carry(ch_exec *x, const char *what, const ch_exchange *ex, int64_t bytes, void *local, void *owned,
                  int back) {
  size_t mark = ch_arena_mark(&x->scratch);
  char *stage = CH_NEW_HOST(&x->scratch, char, ex->owned.max_slots *bytes);
  run own = experts_of(x, ex->e, x->comm->rank);
  ch_bytes here[CH_RANKS], there[CH_RANKS];
  if (!ch_counting(x)) {
    local_spans(x, ex, bytes, local, here);
    owned_spans(x, ex, own, bytes, stage, there);
    if (back) reorder(x, ex, own, bytes, owned, stage, 0);
    ch_comm_exchange(x->comm, what, back ? there : here, back ? here : there);
    if (!back) reorder(x, ex, own, bytes, owned, stage, 1);
  }
  ch_arena_release(&x->scratch, mark);
}

/* Rows of width d from the local view to the owned one, or back. On one process they only become what they would have
 * become on their way. */
static void travel(ch_exec *x, const char *what, const ch_exchange *ex, int d, real CH_DEV *local, real CH_DEV *owned,
                   int back) {
  size_t mark = ch_arena_mark(&x->scratch);
  const ch_record *from = back ? &ex->owned : &ex->local, *to = back ? &ex->local : &ex->owned;
  if (x->wire == CH_COMPUTE_FP32) {
    if (ex->slots)
      carry(x, what, ex, d * (int64_t)sizeof(real), CH_AS_HOST(void, local), CH_AS_HOST(void, owned), back);
    return;
  }
  ch_bf16 CH_DEV *local16 = CH_NEW(&x->scratch, ch_bf16, (int64_t)ex->local.max_slots * d);
  ch_bf16 CH_DEV *owned16 = ex->slots ? CH_NEW(&x->scratch, ch_bf16, (int64_t)ex->owned.max_slots * d) : local16;
  round_rows(x, from, d, back ? owned : local, back ? owned16 : local16);
  if (ex->slots)
    carry(x, what, ex, d * (int64_t)sizeof(ch_bf16), CH_AS_HOST(void, local16), CH_AS_HOST(void, owned16), back);
  widen_rows(x, to, d, back ? local16 : owned16, back ? local : owned);
  ch_arena_release(&x->scratch, mark);
}

void ch_exchange_dispatch(ch_exec *x, const ch_exchange *ex, int d, const real CH_DEV *tokens, real CH_DEV *rows) {
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *sent = ex->slots ? CH_NEW(&x->scratch, real, (int64_t)ex->local.max_slots * d) : rows;
  x->ops->gather(x,
                 &(ch_gather_args){.record = &ex->local, .d = d, .x = tokens + (int64_t)ex->first_row * d, .y = sent});
  travel(x, "rows to experts", ex, d, sent, rows, 0);
  ch_arena_release(&x->scratch, mark);
}

void ch_exchange_combine(ch_exec *x, const ch_exchange *ex, int d, real CH_DEV *rows, real CH_DEV *y,
                         real CH_DEV *tokens, int accumulate) {
  travel(x, "rows from experts", ex, d, y, rows, 1);
  x->ops->combine(x, &(ch_combine_args){.record = &ex->local,
                                        .d = d,
                                        .gated = 1,
                                        .out_acc = accumulate,
                                        .y = y,
                                        .out = tokens + (int64_t)ex->first_row * d});
}

void ch_exchange_combine_backward(ch_exec *x, const ch_exchange *ex, int d, real CH_DEV *y, const real CH_DEV *dtokens,
                                  real CH_DEV *drows, real CH_DEV *dgate) {
  x->ops->combine_backward(
      x,
      &(ch_combine_args){.record = &ex->local, .d = d, .gated = 1, .y = y, .dout = dtokens, .dy = y, .dgate = dgate});
  travel(x, "gradients to experts", ex, d, y, drows, 0);
}

void ch_exchange_return(ch_exec *x, const ch_exchange *ex, int d, real CH_DEV *rows, real CH_DEV *tokens) {
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *y = ex->slots ? CH_NEW(&x->scratch, real, (int64_t)ex->local.max_slots * d) : rows;
  travel(x, "gradients from experts", ex, d, y, rows, 1);
  x->ops->combine(x, &(ch_combine_args){.record = &ex->local, .d = d, .y = y, .out = tokens});
  ch_arena_release(&x->scratch, mark);
}

void ch_exchange_gather_slots(ch_exec *x, const ch_exchange *ex, const ch_record *all, const real CH_DEV *local,
                              real CH_DEV *of_all) {
  if (!ex->slots) return;
  size_t mark = ch_arena_mark(&x->scratch);
  const run everyone = {0, ex->e};
  char *stage = CH_NEW_HOST(&x->scratch, char, all->max_slots * sizeof(real));
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  if (!ch_counting(x)) {
    owned_spans(x, ex, everyone, sizeof(real), stage, receive);
    for (int r = 0; r < x->comm->size; r++) send[r] = (ch_bytes){CH_AS_HOST(void, local), receive[x->comm->rank].bytes};
    ch_comm_exchange(x->comm, "gradients of gates", send, receive);
    reorder(x, ex, everyone, sizeof(real), CH_AS_HOST(char, of_all), stage, 1);
  }
  ch_arena_release(&x->scratch, mark);
}
