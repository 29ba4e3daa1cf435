/* Several ranks: rows of tokens are sent to the owners of their experts, and the results are returned. If experts are
 * split into hidden shards, all shards of an expert get its rows and return partial sums, which the token's rank adds.
 *
 * A rank's experts are split into groups with separate exchanges: during one group's products the next group's rows
 * arrive and the last group's results leave. Messages make progress where `progress` is called, between products. If a
 * rank's tokens have far more slots than the mean, rows are sent in rounds (rounds.c). */
#include "dispatch/exchange.h"
#include "op/prefetch.h"

_Static_assert(2 * CH_EXPERT_GROUPS + CH_AT_ONCE < CH_TRANSFERS,
               "all groups' rows may be under way, both ways, matrices for the next layer, and one more");

static void plan(ch_exec *x, ch_arena *a, int max_slots, int max, ch_dispatch *ex) {
  int64_t ranks = x->comm->size;
  int n = ex->n, e = ex->e, d = ex->d;
  ex->groups = ch_dispatch_groups(x->grid.replica.size, x->grid.ep_group.size, e, max_slots / x->grid.dp_group.size,
                                  ch_row_bytes(x, d), x->comm->worth);
  ch_record_alloc(a, &ex->local, n, e, ch_min(max_slots, (int64_t)n * e));
  int64_t max_rows = x->comm->means * ch_largest_share(x->comm, max_slots);
  ex->max_rows = ch_min(max_rows > e ? max_rows : e, ex->local.max_slots);
  ch_range range = ch_experts_of(x, e, x->grid.replica.rank);
  ex->owned = ch_min(max_slots, (int64_t)max * (range.last - range.first));
  for (int g = 0; g < ex->groups; g++) {
    ch_range some = ch_local_group(x, ex, g);
    int experts = some.last - some.first;
    ex->group[g] = (ch_expert_group){.first = some.first - range.first};
    ex->group[g].record = (ch_record){.experts = experts, .max_slots = ch_min(max_slots, (int64_t)max * experts)};
    ex->group[g].record.expert_begin = CH_NEW(a, int, experts + 1);
    ex->group[g].begin = CH_NEW_HOST(ch_host_arena(x, a), int, experts + 1);
  }
  ch_arena *host = ch_host_arena(x, a);
  ex->slots = CH_NEW_HOST(host, int64_t, ranks * e);
  ex->spans = CH_NEW_HOST(host, ch_bytes, ex->groups * 4 * ranks);
  ex->transfer = CH_NEW_HOST(host, ch_transfer, 2 * ex->groups);
  ex->kept = CH_NEW(a, char, (ex->owned * ch_row_bytes(x, d)));
}

static void split(ch_exec *x, ch_dispatch *ex) {
  ch_range range = ch_tokens_of(ex, x->comm->rank);
  ex->first_row = (int)(ex->begin + range.first - (int64_t)x->comm->rank * ex->n);
  if (range.first == range.last) ex->first_row = 0; /* an empty range may begin beyond this rank's tokens */
  ex->local.tokens = ch_counting(x) ? ex->n : range.last - range.first;
  CH_OP(x, part, .all = &ex->all, .begin = range.first, .end = range.last, .part = &ex->local);
  CH_OP(x, index, .record = &ex->local);
  ch_slots_count(x, ex);
  ex->exchanges = 0;
  if (ch_counting(x)) return;
  ch_rounds_split(x, ex);
  for (int i = 0; i < 2 * ex->groups; i++) ex->transfer[i].place = -1;
}

static ch_bytes *spans_of(const ch_exec *x, const ch_dispatch *ex, int group, int which) {
  return ex->spans + ((int64_t)group * 4 + which) * x->comm->size;
}

/* Number of rows of the round, in device memory. */
static const int CH_DEV *rows_of_round(const ch_dispatch *ex) {
  return ex->round.part->expert_begin + ex->round.part->experts;
}

/* Starts the exchange of a group's rows; the receiver gets them in ex->arrivals. */
static void begin_group(ch_exec *x, ch_dispatch *ex, int group) {
  ch_bytes *send = spans_of(x, ex, group, 0), *receive = spans_of(x, ex, group, 1);
  ch_local_spans(x, ex, group, 0, send);
  ch_owned_spans(&x->grid.replica, ex, ch_local_group(x, ex, group), ch_row_bytes(x, ex->d),
                 CH_HOST_OR_DEVICE(ch_rows_of_group(x, ex, group, ex->arrivals)), receive);
  ch_comm_begin(&x->grid.replica, &ex->transfer[group], ex->request, send, receive);
}

/* Sends the round's y to the experts. With one round, at most AHEAD groups are in flight beyond the awaited one, so
 * that later groups do not take its bandwidth. */
enum { AHEAD = 1 };
static void depart(ch_exec *x, ch_dispatch *ex, real CH_DEV *y) {
  if (x->dispatch_dtype == CH_COMPUTE_BF16)
    CH_OP(x, round_bf16, .count = ex->d, .rows = rows_of_round(ex), .x = y, .y = ex->rounded);
  ch_rounds_move(x, ex, ex->request, ex->arrivals, 0);
  for (int g = 0; g < AHEAD && g < ex->exchanges; g++) begin_group(x, ex, g);
}

/* y += a hidden shard's partial sums of the round's rows. */
static void add_shard(ch_exec *x, const ch_dispatch *ex, int shard, real CH_DEV *y) {
  char CH_DEV *partial = ch_rows_of_shard(x, ex, shard);
  int64_t count = ch_counting(x) ? 0 : ch_rounds_rows(x, ex) * ex->d;
  if (x->dispatch_dtype == CH_COMPUTE_BF16)
    CH_OP(x, widen_bf16, .count = count, .x = (ch_bf16 CH_DEV *)partial, .y = y, .accumulate = 1);
  else
    CH_OP(x, copy, .count = count, .x = (real CH_DEV *)partial, .y = y, .accumulate = 1);
}

/* y = the experts' results of the round's rows; over hidden shards their sum, in shard order. */
static void open_rows(ch_exec *x, const ch_dispatch *ex, real CH_DEV *y) {
  if (x->dispatch_dtype == CH_COMPUTE_BF16)
    CH_OP(x, widen_bf16, .count = ex->d, .rows = rows_of_round(ex), .x = ex->rounded, .y = y);
  for (int s = 1; s < x->grid.tp_group.size; s++) add_shard(x, ex, s, y);
}

/* Waits for it. */
static void come_back(ch_exec *x, ch_dispatch *ex, real CH_DEV *y) {
  ch_rounds_move(x, ex, ex->answer, ex->stage, 1);
  for (int g = 0; g < ex->exchanges; g++) ch_comm_finish(&x->grid.replica, &ex->transfer[ex->groups + g]);
  open_rows(x, ex, y);
}

static void take_scratch(ch_exec *x, ch_dispatch *ex, real CH_DEV *y) {
  if (x->dispatch_dtype == CH_COMPUTE_BF16) ex->rounded = CH_NEW(&x->scratch, ch_bf16, (int64_t)ex->max_rows * ex->d);
  ex->local_rows = x->dispatch_dtype == CH_COMPUTE_BF16 ? (void CH_DEV *)ex->rounded : y;
  ex->stage = CH_NEW(&x->scratch, char, (ex->owned * ch_row_bytes(x, ex->d)));
  ex->partial = CH_NEW(&x->scratch, char, (int64_t)(x->grid.tp_group.size - 1) * ex->max_rows * ch_row_bytes(x, ex->d));
  ch_rounds_alloc(x, ex);
}

static void gather(ch_exec *x, const ch_dispatch *ex, const real CH_DEV *tokens, real CH_DEV *y) {
  int64_t first = ex->first_row + ex->round.first_token;
  ch_dispatch_gather(x, ex, ex->round.part, tokens + first * ex->d, y);
}

static void dispatch(ch_exec *x, ch_dispatch *ex, const real CH_DEV *tokens, real CH_DEV *y) {
  take_scratch(x, ex, y);
  ex->arrivals = ex->kept;
  ex->request = "rows to experts";
  ex->answer = "rows from experts";
  for (ch_rounds_begin(x, ex); ch_rounds_next(x, ex);) {
    gather(x, ex, tokens, y);
    depart(x, ex, y);
  }
}

static int begin_backward(ch_exec *x, ch_dispatch *ex, real CH_DEV *y) {
  take_scratch(x, ex, y);
  ex->arrivals = ex->stage;
  ex->request = "gradients to experts";
  ex->answer = "rows from experts";
  return ex->round.several;
}

/* ch_gates_apply on the round's slots. */
static void apply_gates(ch_exec *x, const ch_dispatch *ex, int gated, const real CH_DEV *tokens, real CH_DEV *y,
                        real CH_DEV *dgate) {
  CH_SCRATCH(x);
  real CH_DEV *of_round = ch_rounds_numbers(x, ex, dgate);
  ch_gates_apply(x, ex->round.part, ex->d, gated, tokens + (int64_t)ex->round.first_token * ex->d, y, of_round);
  ch_rounds_place(x, ex, of_round, dgate);
}

static void combine_backward(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, const real CH_DEV *dtokens,
                             real CH_DEV *dgate) {
  for (ch_rounds_begin(x, ex); ch_rounds_next(x, ex);) {
    if (ex->round.several) come_back(x, ex, y);
    apply_gates(x, ex, !ex->gates_input, dtokens, y, dgate);
    depart(x, ex, y);
  }
  ex->answer = "gradients from experts";
}

/* Buffer for the rows of the largest group. */
static real CH_DEV *group_rows(ch_exec *x, const ch_dispatch *ex, real CH_DEV *y) {
  int64_t max = 0;
  (void)y;
  for (int g = 0; g < ex->groups; g++)
    if (ex->group[g].record.max_slots > max) max = ex->group[g].record.max_slots;
  return CH_NEW(&x->scratch, real, max * ex->d);
}

static void arrive(ch_exec *x, ch_dispatch *ex, int group, real CH_DEV *rows) {
  if (group < ex->exchanges) ch_comm_arrive(&x->grid.replica, &ex->transfer[group]);
  if (group + AHEAD < ex->exchanges) begin_group(x, ex, group + AHEAD);
  ch_rows_reorder(x, &x->grid.replica, ex, ch_local_group(x, ex, group), ex->d, x->dispatch_dtype, rows,
                  ch_rows_of_group(x, ex, group, ex->arrivals), 1);
}

static void read_again(ch_exec *x, ch_dispatch *ex, int group, const real CH_DEV *tokens, real CH_DEV *rows) {
  (void)tokens;
  ch_rows_reorder(x, &x->grid.replica, ex, ch_local_group(x, ex, group), ex->d, x->dispatch_dtype, rows,
                  ch_rows_of_group(x, ex, group, ex->kept), 1);
}

/* Returns a group's results into the buffer that its rows were sent from, so the outgoing transfer must have
 * finished. */
static void send_back(ch_exec *x, ch_dispatch *ex, int group, real CH_DEV *rows) {
  ch_transfer *there = &ex->transfer[group], *back = &ex->transfer[ex->groups + group];
  char CH_DEV *stage = ch_rows_of_group(x, ex, group, ex->stage);
  ch_bytes *send = spans_of(x, ex, group, 2), *receive = spans_of(x, ex, group, 3);
  ch_range some = ch_local_group(x, ex, group);
  if (group < ex->exchanges) ch_comm_finish(&x->grid.replica, there);
  ch_rows_reorder(x, &x->grid.replica, ex, some, ex->d, x->dispatch_dtype, rows, stage, 0);
  if (group >= ex->exchanges) return;
  ch_owned_spans(&x->grid.replica, ex, some, ch_row_bytes(x, ex->d), CH_HOST_OR_DEVICE(stage), send);
  ch_local_spans(x, ex, group, 1, receive);
  ch_comm_begin(&x->grid.replica, back, ex->answer, send, receive);
}

static void progress(ch_exec *x, ch_dispatch *ex) {
  for (int i = 0; i < 2 * ex->exchanges; i++) ch_comm_test(&x->grid.replica, &ex->transfer[i]);
}

static void combine(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, real CH_DEV *tokens, int accumulate) {
  for (ch_rounds_begin(x, ex); ch_rounds_next(x, ex);) {
    come_back(x, ex, y);
    CH_OP(x, combine, .record = ex->round.part, .d = ex->d, .gated = !ex->gates_input, .out_acc = accumulate, .y = y,
          .out = tokens + (int64_t)(ex->first_row + ex->round.first_token) * ex->d);
  }
}

static void dispatch_backward(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, const real CH_DEV *tokens,
                              real CH_DEV *dtokens, real CH_DEV *dgate) {
  for (ch_rounds_begin(x, ex); ch_rounds_next(x, ex);) {
    come_back(x, ex, y);
    CH_OP(x, combine, .record = ex->round.part, .d = ex->d, .gated = ex->gates_input, .y = y,
          .out = dtokens + (int64_t)ex->round.first_token * ex->d);
    if (ex->gates_input) apply_gates(x, ex, 1, tokens, y, dgate);
  }
}

static real CH_DEV *gather_slots(ch_exec *x, const ch_dispatch *ex, const ch_record *all, real CH_DEV *local) {
  real CH_DEV *of_all = CH_NEW(&x->scratch, real, all->max_slots);
  CH_SCRATCH(x);
  const ch_range everyone = {0, ex->e};
  char CH_DEV *stage = CH_NEW(&x->scratch, char, all->max_slots * sizeof(real));
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  if (ch_counting(x)) return of_all;
  ch_owned_spans(x->comm, ex, everyone, sizeof(real), CH_HOST_OR_DEVICE(stage), receive);
  for (int r = 0; r < x->comm->size; r++) send[r] = (ch_bytes){CH_HOST_OR_DEVICE(local), receive[x->comm->rank].bytes};
  ch_comm_exchange(x->comm, "gradients of gates", send, receive);
  ch_rows_reorder(x, x->comm, ex, everyone, 1, CH_COMPUTE_FP32, of_all, stage, 1);
  return of_all;
}

CH_DISPATCHER(ch_dispatch_all_to_all);
