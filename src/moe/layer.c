#include "moe/layer.h"

#include "moe/experts.h"

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

/* S = softmax(X Wg), in full precision. */
static void score(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *jittered = s->jitter ? CH_NEW(&x->scratch, real, (int64_t)a->n * a->d) : NULL;
  if (s->jitter) draw_jitter(x, a, s->jitter);
  const real CH_DEV *in = router_input(x, a, s, jittered);
  x->ops->gemm(
      x, &(ch_gemm_args){.m = a->n, .n = a->e, .k = a->d, .a = in, .b = a->weights.router, .c = s->logits, .exact = 1});
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
  x->ops->tally(x, &(ch_tally_args){.record = &s->record,
                                    .valid = a->valid,
                                    .aux_loss = s->counts.aux_loss,
                                    .dropped = s->counts.dropped,
                                    .demand = s->counts.demand,
                                    .sums = s->tally.sums,
                                    .counts = s->tally.counts});
}

static void run_experts(ch_exec *x, const ch_moe_args *a, const ch_record *r, const ch_moe_saved *s) {
  ch_experts_forward(x, a, r, s->pre, s->expert_y);
  x->ops->combine(x, &(ch_combine_args){
                         .record = r, .d = a->d, .gated = 1, .out_acc = a->out_acc, .y = s->expert_y, .out = a->out});
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

/* From dscores through softmax (unless they are dlogits already) and X Wg: dWg (=|+=) X^T dlogits, dx += dlogits Wg^T.
 */
static void score_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s, real CH_DEV *dscores) {
  size_t mark = ch_arena_mark(&x->scratch);
  int64_t count = (int64_t)a->n * a->d;
  real CH_DEV *jittered = s->jitter ? CH_NEW(&x->scratch, real, count) : NULL;
  real CH_DEV *dlogits = dscores;
  if (s->scores)
    x->ops->softmax_backward(x, &(ch_softmax_args){.n = a->n, .m = a->e, .y = s->scores, .dy = dscores, .dx = dlogits});

  const real CH_DEV *in = router_input(x, a, s, jittered);
  x->ops->gemm(x, &(ch_gemm_args){.m = a->d,
                                  .n = a->e,
                                  .k = a->n,
                                  .trans_a = 1,
                                  .a = in,
                                  .b = dlogits,
                                  .c = a->gradients.router,
                                  .accumulate = a->accumulate,
                                  .exact = 1});
  ch_gemm_args back = {.m = a->n, .n = a->d, .k = a->e, .trans_b = 1, .a = dlogits, .b = a->weights.router, .exact = 1};
  if (!s->jitter) {
    back.c = a->dx;
    back.accumulate = 1;
    x->ops->gemm(x, &back);
  } else {
    back.c = jittered; /* the jittered input is done with */
    x->ops->gemm(x, &back);
    x->ops->multiply(x,
                     &(ch_multiply_args){.count = count, .a = jittered, .b = s->jitter, .y = a->dx, .accumulate = 1});
  }
  ch_arena_release(&x->scratch, mark);
}

/* forward's steps in reverse. */
void ch_moe_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved) {
  size_t mark = ch_arena_mark(&x->scratch);
  const ch_record *r = &saved->record;
  real CH_DEV *dgate = CH_NEW(&x->scratch, real, r->max_slots);
  real CH_DEV *dy = saved->expert_y; /* combine_backward reads y before it writes dy there */
  x->ops->combine_backward(
      x, &(ch_combine_args){
             .record = r, .d = a->d, .gated = 1, .y = saved->expert_y, .dout = a->dout, .dy = dy, .dgate = dgate});
  ch_experts_backward(x, a, r, saved->pre, dy);
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
