#include "moe/exchange.h"

#include <string.h>

#include "comm/collective.h"
#include "moe/router.h"

_Static_assert(2 * CH_EXPERT_GROUPS < CH_TRANSFERS, "all groups' rows may be under way, both ways, and one more");

/* Experts first .. last-1: those of a rank of a replica. */
typedef struct {
  int first, last;
} run;

static run experts_of(const ch_exec *x, int e, int rank) {
  int ranks = x->grid.replica.size;
  return (run){(int)ch_share(e, rank, ranks), (int)ch_share(e, rank + 1, ranks)};
}

/* A group of the experts of some rank of the replica. */
static run group_of(const ch_exec *x, const ch_exchange *ex, int rank, int group) {
  run own = experts_of(x, ex->e, rank);
  int count = own.last - own.first;
  return (run){own.first + (int)ch_share(count, group, ex->groups),
               own.first + (int)ch_share(count, group + 1, ex->groups)};
}

static run own_group(const ch_exec *x, const ch_exchange *ex, int group) {
  return group_of(x, ex, x->grid.replica.rank, group);
}

static int least(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

/* Bytes of a row as it travels. */
static int64_t row_bytes(const ch_exec *x, int d) {
  return d * (int64_t)(x->wire == CH_COMPUTE_BF16 ? sizeof(ch_bf16) : sizeof(real));
}

int ch_exchange_groups(int64_t ranks, int e, int64_t max_slots, int64_t row_bytes, int64_t worth) {
  int64_t most = (e + ranks - 1) / ranks, groups = max_slots / (ranks * ranks) * row_bytes / worth;
  if (groups > CH_EXPERT_GROUPS) groups = CH_EXPERT_GROUPS;
  return groups < 1 ? 1 : least(groups, most);
}

void ch_exchange_alloc(ch_exec *x, ch_arena *a, int n, int e, int d, int max_slots, int most, ch_exchange *ex) {
  *ex = (ch_exchange){.n = n, .e = e, .d = d, .groups = 1};
  int64_t ranks = x->comm->size;
  if (ranks == 1) return;
  ex->groups =
      ch_exchange_groups(x->grid.replica.size, e, max_slots / x->grid.holders.size, row_bytes(x, d), x->comm->worth);
  ch_record_alloc(a, &ex->local, n, e, least(max_slots, (int64_t)n * e));
  run own = experts_of(x, e, x->grid.replica.rank);
  ex->owned = least(max_slots, (int64_t)most * (own.last - own.first));
  for (int g = 0; g < ex->groups; g++) {
    run some = own_group(x, ex, g);
    int experts = some.last - some.first;
    ex->group[g] = (ch_expert_group){.first = some.first - own.first};
    ex->group[g].record = (ch_record){.experts = experts, .max_slots = least(max_slots, (int64_t)most * experts)};
    ex->group[g].record.expert_begin = CH_NEW(a, int, experts + 1);
  }
  ex->slots = CH_NEW_HOST(a, int64_t, ranks * e);
  ex->spans = CH_NEW_HOST(a, ch_bytes, ex->groups * 4 * ranks);
  ex->transfer = CH_NEW_HOST(a, ch_transfer, 2 * ex->groups);
  ex->kept = CH_NEW(a, char, ex->owned *row_bytes(x, d));
}

/* Slots that the tokens of one rank, by its number among all, have of these experts. */
static int64_t slots_at(const ch_exchange *ex, int rank, run at) {
  int64_t sum = 0;
  for (int i = at.first; i < at.last; i++) sum += ex->slots[(int64_t)rank * ex->e + i];
  return sum;
}

/* The same of all tokens of the replica. */
static int slots_of_replica(const ch_exec *x, const ch_exchange *ex, run at) {
  int64_t sum = 0;
  for (int r = 0; r < x->grid.replica.size; r++) sum += slots_at(ex, ch_comm_number(&x->grid.replica, r), at);
  return (int)sum;
}

/* Who has how many slots of whom, and where those of this rank's groups begin. */
static void count_slots(ch_exec *x, const ch_record *all, int begin, ch_exchange *ex) {
  const int *expert_begin = CH_AS_HOST(const int, all->expert_begin), *token = CH_AS_HOST(const int, all->slot_token);
  int first = experts_of(x, ex->e, x->grid.replica.rank).first;
  memset(ex->slots, 0, (size_t)x->comm->size * (size_t)ex->e * sizeof *ex->slots);
  for (int i = 0; i < ex->e; i++)
    for (int s = expert_begin[i]; s < expert_begin[i + 1]; s++)
      ex->slots[(int64_t)((begin + token[s]) / ex->n) * ex->e + i]++;
  for (int g = 0; g < ex->groups; g++) {
    run some = own_group(x, ex, g);
    int *to = CH_AS_HOST(int, ex->group[g].record.expert_begin);
    for (int i = some.first; i <= some.last; i++) to[i - some.first] = slots_of_replica(x, ex, (run){some.first, i});
    ex->group[g].slot = slots_of_replica(x, ex, (run){first, some.first});
    ex->group[g].record.load = x->grid.holders.size == 1 ? all->load : -1; /* a replica's share is nobody's to tell */
  }
  for (int i = 0; i < 2 * ex->groups; i++) ex->transfer[i].place = -1;
}

void ch_exchange_split(ch_exec *x, const ch_record *all, int begin, ch_exchange *ex) {
  if (!ex->slots) {
    ex->local = ex->group[0].record = *all;
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

/* ---- where rows stand ---- */

/* The rows of this rank's tokens, in the order of the local view: those of a group of every rank of the
 * replica. */
static void local_spans(const ch_exec *x, const ch_exchange *ex, int group, void *rows, ch_bytes *span) {
  int64_t bytes = row_bytes(x, ex->d);
  for (int r = 0; r < x->grid.replica.size; r++) {
    run some = group_of(x, ex, r, group);
    int64_t before = slots_at(ex, x->comm->rank, (run){0, some.first});
    span[r] = (ch_bytes){(char *)rows + before * bytes, slots_at(ex, x->comm->rank, some) * bytes};
  }
}

/* Rows of these experts one behind the other, by the owners of the tokens, who are `ranks`. */
static void owned_spans(const ch_comm *ranks, const ch_exchange *ex, run some, int64_t bytes, void *rows,
                        ch_bytes *span) {
  char *at = rows;
  for (int r = 0; r < ranks->size; r++) {
    span[r] = (ch_bytes){at, slots_at(ex, ch_comm_number(ranks, r), some) * bytes};
    at += span[r].bytes;
  }
}

/* Between `count` numbers and the same as they travel. */
static void convert(ch_exec *x, ch_compute wire, int64_t count, real CH_DEV *value, char CH_DEV *travelling,
                    int arrive) {
  if (wire == CH_COMPUTE_FP32)
    x->ops->copy(x, &(ch_copy_args){.count = count,
                                    .x = arrive ? (real CH_DEV *)travelling : value,
                                    .y = arrive ? value : (real CH_DEV *)travelling});
  else if (arrive)
    x->ops->widen_bf16(x, &(ch_widen_args){.count = count, .x = (ch_bf16 CH_DEV *)travelling, .y = value});
  else
    x->ops->round_bf16(x, &(ch_round_args){.count = count, .x = value, .y = (ch_bf16 CH_DEV *)travelling});
}

/* Between rows of width d in the order of slots, expert by expert, and the same as they travel, by the owners of their
 * tokens. */
static void reorder(ch_exec *x, const ch_comm *ranks, const ch_exchange *ex, run some, int d, ch_compute wire,
                    real CH_DEV *by_slot, char CH_DEV *by_rank, int to_slots) {
  int64_t at[CH_RANKS], next = 0, bytes = wire == CH_COMPUTE_BF16 ? sizeof(ch_bf16) : sizeof(real);
  for (int r = 0; r < ranks->size; next += slots_at(ex, ch_comm_number(ranks, r++), some) * d) at[r] = next;
  for (int i = some.first; i < some.last; i++)
    for (int r = 0; r < ranks->size; r++) {
      int64_t count = slots_at(ex, ch_comm_number(ranks, r), (run){i, i + 1}) * d;
      if (count) convert(x, wire, count, by_slot, by_rank + at[r] * bytes, to_slots);
      by_slot += count;
      at[r] += count;
    }
}

/* A group's rows among those of all this rank's experts. */
static char CH_DEV *of_group(const ch_exec *x, const ch_exchange *ex, int group, void CH_DEV *rows) {
  return (char CH_DEV *)rows + ex->group[group].slot * row_bytes(x, ex->d);
}

/* ---- rows on their way ---- */

static ch_bytes *spans_of(const ch_exec *x, const ch_exchange *ex, int group, int which) {
  return ex->spans + ((int64_t)group * 4 + which) * x->comm->size;
}

/* All rows of the record to its bf16 ones, or back: only the device knows how many. */
static void round_all(ch_exec *x, const ch_exchange *ex, const real CH_DEV *y) {
  const ch_record *r = &ex->local;
  x->ops->round_bf16(x,
                     &(ch_round_args){.count = ex->d, .rows = r->expert_begin + r->experts, .x = y, .y = ex->rounded});
}

static void widen_all(ch_exec *x, const ch_exchange *ex, real CH_DEV *y) {
  const ch_record *r = &ex->local;
  x->ops->widen_bf16(x,
                     &(ch_widen_args){.count = ex->d, .rows = r->expert_begin + r->experts, .x = ex->rounded, .y = y});
}

/* Rows of one process become what they would have become on their way. */
static void round_in_place(ch_exec *x, const ch_exchange *ex, real CH_DEV *y) {
  if (x->wire == CH_COMPUTE_FP32) return;
  round_all(x, ex, y);
  widen_all(x, ex, y);
}

/* A group's rows set out, and come as ex->arrivals on the other side. */
static void begin_group(ch_exec *x, ch_exchange *ex, int group) {
  ch_bytes *send = spans_of(x, ex, group, 0), *receive = spans_of(x, ex, group, 1);
  local_spans(x, ex, group, CH_AS_HOST(void, ex->local_rows), send);
  owned_spans(&x->grid.replica, ex, own_group(x, ex, group), row_bytes(x, ex->d),
              CH_AS_HOST(void, of_group(x, ex, group, ex->arrivals)), receive);
  ch_comm_begin(&x->grid.replica, &ex->transfer[group], ex->request, send, receive);
}

/* y goes to the experts: groups AHEAD of the one that is waited for, so that no later one takes bandwidth from it. */
enum { AHEAD = 1 };
static void send_there(ch_exec *x, ch_exchange *ex, real CH_DEV *y) {
  ex->local_rows = x->wire == CH_COMPUTE_BF16 ? (void CH_DEV *)ex->rounded : y;
  if (x->wire == CH_COMPUTE_BF16) round_all(x, ex, y);
  for (int g = 0; g < AHEAD && g < ex->groups && !ch_counting(x); g++) begin_group(x, ex, g);
}

static void take_scratch(ch_exec *x, ch_exchange *ex) {
  if (x->wire == CH_COMPUTE_BF16) ex->rounded = CH_NEW(&x->scratch, ch_bf16, (int64_t)ex->local.max_slots * ex->d);
  if (ex->slots) ex->stage = CH_NEW(&x->scratch, char, ex->owned *row_bytes(x, ex->d));
}

static void gather(ch_exec *x, const ch_exchange *ex, const real CH_DEV *tokens, real CH_DEV *y) {
  x->ops->gather(
      x, &(ch_gather_args){.record = &ex->local, .d = ex->d, .x = tokens + (int64_t)ex->first_row * ex->d, .y = y});
}

void ch_exchange_dispatch(ch_exec *x, ch_exchange *ex, const real CH_DEV *tokens, real CH_DEV *y) {
  take_scratch(x, ex);
  ex->arrivals = ex->kept;
  ex->request = "rows to experts";
  ex->answer = "rows from experts";
  gather(x, ex, tokens, y);
  if (ex->slots)
    send_there(x, ex, y);
  else
    round_in_place(x, ex, y);
}

void ch_exchange_combine_backward(ch_exec *x, ch_exchange *ex, real CH_DEV *y, const real CH_DEV *dtokens,
                                  real CH_DEV *dgate) {
  take_scratch(x, ex);
  ex->arrivals = ex->stage;
  ex->request = "gradients to experts";
  ex->answer = "gradients from experts";
  x->ops->combine_backward(
      x, &(ch_combine_args){
             .record = &ex->local, .d = ex->d, .gated = 1, .y = y, .dout = dtokens, .dy = y, .dgate = dgate});
  if (ex->slots)
    send_there(x, ex, y);
  else
    round_in_place(x, ex, y);
}

void ch_exchange_arrive(ch_exec *x, ch_exchange *ex, int group, real CH_DEV *rows) {
  if (!ex->slots || ch_counting(x)) return;
  ch_comm_arrive(&x->grid.replica, &ex->transfer[group]);
  if (group + AHEAD < ex->groups) begin_group(x, ex, group + AHEAD);
  reorder(x, &x->grid.replica, ex, own_group(x, ex, group), ex->d, x->wire, rows, of_group(x, ex, group, ex->arrivals),
          1);
}

void ch_exchange_read_again(ch_exec *x, ch_exchange *ex, int group, const real CH_DEV *tokens, real CH_DEV *rows) {
  if (!ex->slots) {
    gather(x, ex, tokens, rows);
    round_in_place(x, ex, rows);
  } else if (!ch_counting(x)) {
    reorder(x, &x->grid.replica, ex, own_group(x, ex, group), ex->d, x->wire, rows, of_group(x, ex, group, ex->kept),
            1);
  }
}

/* They come back to where those stood that went there, which must have gone. */
void ch_exchange_send_back(ch_exec *x, ch_exchange *ex, int group, real CH_DEV *rows) {
  if (!ex->slots) {
    round_in_place(x, ex, rows);
    return;
  }
  if (ch_counting(x)) return;
  ch_transfer *there = &ex->transfer[group], *back = &ex->transfer[ex->groups + group];
  char CH_DEV *stage = of_group(x, ex, group, ex->stage);
  ch_bytes *send = spans_of(x, ex, group, 2), *receive = spans_of(x, ex, group, 3);
  run some = own_group(x, ex, group);
  ch_comm_finish(&x->grid.replica, there);
  reorder(x, &x->grid.replica, ex, some, ex->d, x->wire, rows, stage, 0);
  owned_spans(&x->grid.replica, ex, some, row_bytes(x, ex->d), CH_AS_HOST(void, stage), send);
  local_spans(x, ex, group, CH_AS_HOST(void, ex->local_rows), receive);
  ch_comm_begin(&x->grid.replica, back, ex->answer, send, receive);
}

void ch_exchange_progress(ch_exec *x, ch_exchange *ex) {
  for (int i = 0; ex->slots && i < 2 * ex->groups && !ch_counting(x); i++)
    ch_comm_test(&x->grid.replica, &ex->transfer[i]);
}

/* All rows are back, and y has them. */
static void come_back(ch_exec *x, ch_exchange *ex, real CH_DEV *y) {
  if (!ex->slots) return;
  for (int g = 0; g < ex->groups && !ch_counting(x); g++)
    ch_comm_finish(&x->grid.replica, &ex->transfer[ex->groups + g]);
  if (x->wire == CH_COMPUTE_BF16) widen_all(x, ex, y);
}

void ch_exchange_combine(ch_exec *x, ch_exchange *ex, real CH_DEV *y, real CH_DEV *tokens, int accumulate) {
  come_back(x, ex, y);
  x->ops->combine(x, &(ch_combine_args){.record = &ex->local,
                                        .d = ex->d,
                                        .gated = 1,
                                        .out_acc = accumulate,
                                        .y = y,
                                        .out = tokens + (int64_t)ex->first_row * ex->d});
}

void ch_exchange_return(ch_exec *x, ch_exchange *ex, real CH_DEV *y, real CH_DEV *tokens) {
  come_back(x, ex, y);
  x->ops->combine(x, &(ch_combine_args){.record = &ex->local, .d = ex->d, .y = y, .out = tokens});
}

void ch_exchange_gather_slots(ch_exec *x, const ch_exchange *ex, const ch_record *all, const real CH_DEV *local,
                              real CH_DEV *of_all) {
  if (!ex->slots) return;
  size_t mark = ch_arena_mark(&x->scratch);
  const run everyone = {0, ex->e};
  char CH_DEV *stage = CH_NEW(&x->scratch, char, all->max_slots * sizeof(real));
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  if (!ch_counting(x)) {
    owned_spans(x->comm, ex, everyone, sizeof(real), CH_AS_HOST(void, stage), receive);
    for (int r = 0; r < x->comm->size; r++) send[r] = (ch_bytes){CH_AS_HOST(void, local), receive[x->comm->rank].bytes};
    ch_comm_exchange(x->comm, "gradients of gates", send, receive);
    reorder(x, x->comm, ex, everyone, 1, CH_COMPUTE_FP32, of_all, stage, 1);
  }
  ch_arena_release(&x->scratch, mark);
}
