#include "moe/layer.h"

#include "moe/exchange.h"
#include "moe/experts.h"
#include "op/shards.h"

static int jitters(const ch_moe_args *a) { return a->training && a->options->jitter > 0; }

/* Slots that the record must have room for. */
static int record_slots(const ch_moe_args *a) {
  if (a->causal && a->router->causal) return a->n * ch_router_most_experts(a->options, a->e);
  return a->router->max_slots(a->options, a->n, a->e, a->sequence_length);
}

/* Slots that go through the experts at once. By thresholds every token could meet every expert, but hardly does: memory
 * is planned for what the router's own rule takes, and what is more goes in several parts. */
static int expert_slots(const ch_moe_args *a, int slots) {
  if (!a->causal) return slots;
  int own = a->router->max_slots(a->options, a->n, a->e, a->sequence_length);
  int one_token = ch_router_most_experts(a->options, a->e), chunk = own > one_token ? own : one_token;
  return chunk < slots ? chunk : slots;
}

/* Record and counts go to the tape; what only backward reads goes there when it is to be kept, else to scratch. */
static void plan(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  ch_arena *keep = a->keep ? &x->tape : &x->scratch;
  int slots = record_slots(a);
  *s = (ch_moe_saved){0};
  ch_record_alloc(&x->tape, &s->record, a->n, a->e, slots);
  ch_route_counts_alloc(x, &x->tape, &s->counts, a->e);
  s->tally = a->tally;
  if (!s->tally.sums) {
    s->tally.sums = CH_NEW(&x->tape, double, CH_TALLY_SUMS);
    s->tally.counts = CH_NEW(&x->tape, int64_t, CH_TALLY_COUNTS(a->e));
  }
  if (a->options->normalize_gates) s->gate_sum = CH_NEW(keep, real, a->n);
  if (jitters(a)) s->jitter = CH_NEW(keep, real, (int64_t)a->n * a->d);
  if (ch_router_learned(a->router)) {
    s->logits = CH_NEW(keep, real, (int64_t)a->n * a->e);
    if (ch_router_scored(a->router)) s->scores = CH_NEW(keep, real, (int64_t)a->n * a->e);
  }
  s->chunk_slots = expert_slots(a, slots);
  s->pre = CH_NEW(keep, real, (int64_t)s->chunk_slots * a->h);
  s->expert_y = CH_NEW(keep, real, (int64_t)s->chunk_slots * a->d);
}

static void draw_jitter(ch_exec *x, const ch_moe_args *a, real CH_DEV *factor) {
  x->ops->jitter(x, &(ch_jitter_args){.n = a->n,
                                      .d = a->d,
                                      .jitter = a->options->jitter,
                                      .rng = ch_rng_make(a->rng.seed, CH_STREAM_ROUTER_JITTER, a->rng.sub),
                                      .rng_base = a->rng_base,
                                      .factor = factor});
}

/* What the router reads: x, or x jittered into `jittered`. */
static const real CH_DEV *router_input(ch_exec *x, const ch_moe_args *a, const ch_moe_saved *s, real CH_DEV *jittered) {
  if (!s->jitter) return a->x;
  x->ops->multiply(x, &(ch_multiply_args){.count = (int64_t)a->n * a->d, .a = a->x, .b = s->jitter, .y = jittered});
  return jittered;
}

/* logits = X Wg, in full precision. */
static void score_rows(ch_exec *x, const ch_moe_args *a, const real CH_DEV *in, real CH_DEV *logits) {
  int64_t rows = a->n / a->shards;
  for (int i = 0; i < a->shards; i++)
    x->ops->gemm(x, &(ch_gemm_args){.m = rows,
                                    .n = a->e,
                                    .k = a->d,
                                    .a = in + i * rows * a->d,
                                    .b = a->weights.router,
                                    .c = logits + i * rows * a->e,
                                    .exact = 1});
}

/* S = softmax(X Wg). */
static void score(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *jittered = s->jitter ? CH_NEW(&x->scratch, real, (int64_t)a->n * a->d) : NULL;
  if (s->jitter) draw_jitter(x, a, s->jitter);
  const real CH_DEV *in = router_input(x, a, s, jittered);
  score_rows(x, a, in, s->logits);
  if (s->scores) x->ops->softmax(x, &(ch_softmax_args){.n = a->n, .m = a->e, .x = s->logits, .y = s->scores});
  ch_arena_release(&x->scratch, mark);
}

static ch_route_args route_args(const ch_moe_args *a, ch_moe_saved *s) {
  return (ch_route_args){.options = a->options,
                         .n = a->n,
                         .e = a->e,
                         .sequence_length = a->sequence_length,
                         .mask = a->mask,
                         .valid = a->valid,
                         .token = a->token,
                         .logits = s->logits,
                         .scores = s->scores,
                         .d = a->d,
                         .x = a->x,
                         .weight = a->weights.router,
                         .thresholds = a->weights.thresholds,
                         .training = a->training,
                         .by_threshold = a->by_threshold,
                         .rng = ch_rng_make(a->rng.seed, CH_STREAM_SECOND_EXPERT, a->rng.sub),
                         .rng_base = a->rng_base,
                         .record = &s->record,
                         .counts = &s->counts,
                         .state = a->observe,
                         .observed = a->observed,
                         .aux_scale = a->aux_scale};
}

/* Which tokens each expert takes, what the router keeps of it, and what it comes to in numbers. */
static void assign(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  ch_route_args routing = route_args(a, s);
  if (a->causal && a->router->causal)
    a->router->causal(x, &routing);
  else
    ch_route(x, a->router, &routing);
  if (a->observe) a->router->observe(x, &routing);
  x->ops->index(x, &(ch_index_args){.record = &s->record});
  if (s->gate_sum) x->ops->normalize_gates(x, &(ch_normalize_args){.record = &s->record, .sum = s->gate_sum});
  x->ops->tally(x, &(ch_tally_args){.record = &s->record,
                                    .valid = a->valid,
                                    .aux_loss = s->counts.aux_loss,
                                    .dropped = s->counts.dropped,
                                    .demand = s->counts.demand,
                                    .sums = s->tally.sums,
                                    .counts = s->tally.counts});
}

static void run_experts(ch_exec *x, const ch_moe_args *a, const ch_record *r, const ch_moe_saved *s) {
  ch_exchange_dispatch(x, r, a->d, a->x, s->expert_y);
  ch_experts_forward(x, a, r, s->pre, s->expert_y);
  ch_exchange_combine(x, r, a->d, s->expert_y, a->out, a->out_acc);
}

/* The same for as many tokens at a time as there is room for: how many, the host has to read. */
static void run_in_parts(ch_exec *x, const ch_moe_args *a, const ch_moe_saved *s) {
  const ch_record *all = &s->record;
  ch_marks mark = ch_scratch_mark(x);
  const int *token_begin = ch_get(x, all->token_begin, ((size_t)a->n + 1) * sizeof(int));
  ch_record part;
  ch_record_alloc(&x->scratch, &part, a->n, a->e, s->chunk_slots);
  ch_moe_args some = *a;
  for (int begin = 0, end; begin < a->n; begin = end) {
    for (end = begin + 1; !ch_counting(x) && end < a->n; end++)
      if (token_begin[end + 1] - token_begin[begin] > s->chunk_slots) break;
    some.n = end - begin;
    some.x = a->x + (int64_t)begin * a->d;
    some.out = a->out + (int64_t)begin * a->d;
    part.tokens = some.n;
    x->ops->part(x, &(ch_part_args){.all = all, .begin = begin, .end = end, .part = &part});
    x->ops->index(x, &(ch_index_args){.record = &part});
    run_experts(x, &some, &part, s);
    if (ch_counting(x)) break;
  }
  ch_scratch_release(x, mark);
}

void ch_moe_forward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved) {
  size_t mark = ch_arena_mark(&x->scratch);
  plan(x, a, saved);
  if (ch_router_learned(a->router)) score(x, a, saved);
  assign(x, a, saved);
  if (saved->chunk_slots == saved->record.max_slots)
    run_experts(x, a, &saved->record, saved);
  else
    run_in_parts(x, a, saved);
  if (a->hook) a->hook->call(a->hook->context, x, a, saved);
  ch_arena_release(&x->scratch, mark);
}

/* Gradient of X Wg. */
typedef struct {
  const ch_moe_args *a;
  const real CH_DEV *in, *dlogits;
  real CH_DEV *din;
  int accumulate_din;
} score_task;

/* One shard's rows: dWg (=|+=) X^T dlogits, din (=|+=) dlogits Wg^T. */
static void score_rows_backward(ch_exec *x, void *context, int shard, real CH_DEV *const *dw, int accumulate) {
  const score_task *c = context;
  const ch_moe_args *a = c->a;
  int64_t rows = a->n / a->shards, first = shard * rows;
  x->ops->gemm(x, &(ch_gemm_args){.m = a->d,
                                  .n = a->e,
                                  .k = rows,
                                  .trans_a = 1,
                                  .a = c->in + first * a->d,
                                  .b = c->dlogits + first * a->e,
                                  .c = dw[0],
                                  .accumulate = accumulate,
                                  .exact = 1});
  x->ops->gemm(x, &(ch_gemm_args){.m = rows,
                                  .n = a->d,
                                  .k = a->e,
                                  .trans_b = 1,
                                  .a = c->dlogits + first * a->e,
                                  .b = a->weights.router,
                                  .c = c->din + first * a->d,
                                  .accumulate = c->accumulate_din,
                                  .exact = 1});
}

/* From dscores through softmax (unless they are dlogits already) and X Wg: dWg (=|+=) X^T dlogits, dx += dlogits Wg^T.
 */
static void score_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s, real CH_DEV *dscores) {
  size_t mark = ch_arena_mark(&x->scratch);
  int64_t count = (int64_t)a->n * a->d;
  real CH_DEV *jittered = s->jitter ? CH_NEW(&x->scratch, real, count) : NULL;
  real CH_DEV *dlogits = dscores;
  if (s->scores)
    x->ops->softmax_backward(x, &(ch_softmax_args){.n = a->n, .m = a->e, .y = s->scores, .dy = dscores, .dx = dlogits});

  real CH_DEV *din = s->jitter ? jittered : a->dx; /* where a shard's jittered input is done with */
  score_task c = {a, router_input(x, a, s, jittered), dlogits, din, !s->jitter};
  const ch_sum sum = {.y = a->gradients.router, .count = (int64_t)a->d * a->e};
  ch_sum_shards(x, a->shards, &sum, 1, a->accumulate, score_rows_backward, &c);
  if (s->jitter)
    x->ops->multiply(x, &(ch_multiply_args){.count = count, .a = din, .b = s->jitter, .y = a->dx, .accumulate = 1});
  ch_arena_release(&x->scratch, mark);
}

/* forward's steps in reverse. */
void ch_moe_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved) {
  size_t mark = ch_arena_mark(&x->scratch);
  const ch_record *r = &saved->record;
  real CH_DEV *dgate = CH_NEW(&x->scratch, real, r->max_slots);
  real CH_DEV *rows = saved->expert_y; /* y, then its gradient, then that of what the experts read */
  ch_exchange_combine_backward(x, r, a->d, rows, a->dout, rows, dgate);
  ch_experts_backward(x, a, r, saved->pre, rows);
  ch_exchange_return(x, r, a->d, rows, a->dx);
  if (saved->gate_sum)
    x->ops->normalize_gates_backward(
        x, &(ch_normalize_args){.record = &saved->record, .sum = saved->gate_sum, .dgate = dgate});
  if (a->router->backward) {
    real CH_DEV *dscores = CH_NEW(&x->scratch, real, (int64_t)a->n * a->e);
    ch_route_args routing = route_args(a, saved);
    routing.dgate = dgate;
    routing.dscores = dscores;
    a->router->backward(x, &routing);
    score_backward(x, a, saved, dscores);
  } else if (a->gradients.router && !a->accumulate) {
    x->ops->copy(x, &(ch_copy_args){.count = (int64_t)a->d * a->e, .y = a->gradients.router});
  }
  ch_arena_release(&x->scratch, mark);
}
