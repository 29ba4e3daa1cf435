/* One process has all tokens and all experts: dispatch is a gather, combine a sum over a token's slots. */
#include "dispatch/dispatch.h"

static void plan(ch_exec *x, ch_arena *a, int max_slots, int max, ch_dispatch *ex) {
  (void)max;
  ex->groups = 1;
  if (!x->memory->host) ex->group[0].begin = CH_NEW_HOST(ch_host_arena(x, a), int, ex->e + 1);
  ex->max_rows = max_slots;
  ex->owned = max_slots;
}

/* A library's GEMM needs the experts' row offsets on the host: they are read from the device once, unless a bound of
 * the router suffices. */
static void read_loads(const ch_exec *x, ch_expert_group *g) {
  ch_record *r = &g->record;
  int bounded = r->max && (int64_t)r->experts * r->max <= CH_WORTH_PADDING * (int64_t)r->max_slots;
  if (x->memory->host || r->load >= 0 || bounded) return;
  ch_download_into(&x->scratch, g->begin, r->expert_begin, ((size_t)r->experts + 1) * sizeof(int));
  if (!ch_counting(x)) r->host_begin = g->begin;
}

static void split(ch_exec *x, ch_dispatch *ex) {
  ex->local = ex->group[0].record = ex->all;
  ex->first_row = ex->begin;
  read_loads(x, &ex->group[0]);
}

/* Rounds rows to the dispatch dtype, as a transfer does. The number of rows is in device memory. */
static void round_in_place(ch_exec *x, const ch_dispatch *ex, real CH_DEV *y) {
  if (x->dispatch_dtype == CH_COMPUTE_FP32) return;
  CH_SCRATCH(x);
  const int CH_DEV *rows = ex->all.expert_begin + ex->e;
  ch_bf16 CH_DEV *rounded = CH_NEW(&x->scratch, ch_bf16, (int64_t)ex->max_rows * ex->d);
  CH_OP(x, round_bf16, .count = ex->d, .rows = rows, .x = y, .y = rounded);
  CH_OP(x, widen_bf16, .count = ex->d, .rows = rows, .x = rounded, .y = y);
}

/* tokens [n,d] to y [slots,d] */
static void dispatch(ch_exec *x, ch_dispatch *ex, const real CH_DEV *tokens, real CH_DEV *y) {
  tokens += (int64_t)ex->first_row * ex->d;
  ex->rounds = x->ops->writes_bf16 && x->compute == CH_COMPUTE_BF16 && !ex->gates_input;
  if (ex->rounds) {
    CH_OP(x, gather, .record = &ex->all, .d = ex->d, .x = tokens, .y16 = (ch_bf16 CH_DEV *)y);
    return;
  }
  ch_dispatch_gather(x, ex, &ex->all, tokens, y);
  round_in_place(x, ex, y);
}

/* tokens [n,d] (= or +=) the sum of gate * y [slots,d] over each token's slots */
static void combine(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, real CH_DEV *tokens, int accumulate) {
  CH_OP(x, combine, .record = &ex->all, .d = ex->d, .gated = !ex->gates_input, .out_acc = accumulate, .y = y,
        .out = tokens + (int64_t)ex->first_row * ex->d);
}

static int begin_backward(ch_exec *x, ch_dispatch *ex, real CH_DEV *y) { return (void)x, (void)ex, (void)y, 0; }

static void combine_backward(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, const real CH_DEV *dtokens,
                             real CH_DEV *dgate) {
  ch_gates_apply(x, &ex->all, ex->d, !ex->gates_input, dtokens, y, dgate);
  round_in_place(x, ex, y);
}

static void dispatch_backward(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, const real CH_DEV *tokens,
                              real CH_DEV *dtokens, real CH_DEV *dgate) {
  CH_OP(x, combine, .record = &ex->all, .d = ex->d, .gated = ex->gates_input, .y = y, .out = dtokens);
  if (ex->gates_input) ch_gates_apply(x, &ex->all, ex->d, 1, tokens, y, dgate);
}

/* With one process rows are not sent, so y already holds all of them. */
static real CH_DEV *group_rows(ch_exec *x, const ch_dispatch *ex, real CH_DEV *y) { return (void)x, (void)ex, y; }

static void arrive(ch_exec *x, ch_dispatch *ex, int group, real CH_DEV *rows) {
  (void)x, (void)ex, (void)group, (void)rows;
}

static void read_again(ch_exec *x, ch_dispatch *ex, int group, const real CH_DEV *tokens, real CH_DEV *rows) {
  (void)group;
  dispatch(x, ex, tokens, rows);
}

static void send_back(ch_exec *x, ch_dispatch *ex, int group, real CH_DEV *rows) {
  (void)group;
  round_in_place(x, ex, rows);
}

static void progress(ch_exec *x, ch_dispatch *ex) { (void)x, (void)ex; }

static real CH_DEV *gather_slots(ch_exec *x, const ch_dispatch *ex, const ch_record *all, real CH_DEV *local) {
  return (void)x, (void)ex, (void)all, local;
}

CH_DISPATCHER(ch_dispatch_local);
