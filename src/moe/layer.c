#include "moe/layer.h"

#include "moe/expert_ffn.h"

static int learned(const ch_moe_args *a) { return (a->router->caps & CH_ROUTER_LEARNED) != 0; }

static int jitters(const ch_moe_args *a) {
  return a->training && (a->router->caps & CH_ROUTER_JITTER) && a->options->jitter > 0;
}

/* Record and counts go to the tape; what only backward reads goes there when it is to be kept, else to scratch. */
static void plan(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  ch_arena *keep = a->keep ? &x->tape : &x->scratch;
  int slots = a->router->max_slots(a->options, a->n, a->e, a->sequence_length);
  *s = (ch_moe_saved){0};
  ch_record_alloc(&x->tape, &s->record, a->n, a->e, slots);
  s->counts.demand = CH_NEW(&x->tape, int, a->e);
  if (jitters(a)) s->jitter = CH_NEW(keep, real, (int64_t)a->n * a->d);
  if (learned(a)) {
    s->logits = CH_NEW(keep, real, (int64_t)a->n * a->e);
    s->scores = CH_NEW(keep, real, (int64_t)a->n * a->e);
  }
  s->pre = CH_NEW(keep, real, (int64_t)slots * a->h);
  s->expert_y = CH_NEW(keep, real, (int64_t)slots * a->d);
}

/* Factors U[1-j, 1+j]; one random number of 64 bits serves two columns. */
static void draw_jitter(ch_exec *x, const ch_moe_args *a, real *factor) {
  ch_rng rng = ch_rng_make(a->rng.seed, CH_STREAM_ROUTER_JITTER, a->rng.sub);
  uint64_t pairs = ((uint64_t)a->d + 1) / 2;
  double unit = 2 * a->options->jitter * 0x1p-32, low = 1 - a->options->jitter;
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->n; t++) {
    real *row = factor + (int64_t)t * a->d;
    for (uint64_t p = 0; p < pairs; p++) {
      uint64_t bits = ch_rng_bits(rng, (a->rng_base + (uint64_t)t) * pairs + p);
      row[2 * p] = (real)(low + unit * ((double)(uint32_t)bits + 0.5));
      if (2 * p + 1 < (uint64_t)a->d) row[2 * p + 1] = (real)(low + unit * ((double)(bits >> 32) + 0.5));
    }
  }
}

/* out (=|+=) in * factor */
static void multiply(ch_exec *x, int64_t count, const real *in, const real *factor, real *out, int accumulate) {
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < count; i++) out[i] = (accumulate ? out[i] : 0) + in[i] * factor[i];
}

/* What the router reads: x, or x jittered into `room`. */
static const real *router_input(ch_exec *x, const ch_moe_args *a, const ch_moe_saved *s, real *room) {
  if (!s->jitter) return a->x;
  if (!ch_counting(x)) multiply(x, (int64_t)a->n * a->d, a->x, s->jitter, room, 0);
  return room;
}

/* S = softmax(X Wg), in full precision. */
static void score(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  size_t mark = ch_arena_mark(&x->scratch);
  real *room = s->jitter ? CH_NEW(&x->scratch, real, (int64_t)a->n * a->d) : NULL;
  if (s->jitter && !ch_counting(x)) draw_jitter(x, a, s->jitter);
  const real *in = router_input(x, a, s, room);
  x->ops->gemm(
      x, &(ch_gemm_args){.m = a->n, .n = a->e, .k = a->d, .a = in, .b = a->weights.router, .c = s->logits, .exact = 1});
  x->ops->softmax(x, &(ch_softmax_args){.n = a->n, .m = a->e, .x = s->logits, .y = s->scores});
  ch_arena_release(&x->scratch, mark);
}

static ch_route_args route_args(const ch_moe_args *a, ch_moe_saved *s) {
  return (ch_route_args){.options = a->options,
                         .n = a->n,
                         .e = a->e,
                         .sequence_length = a->sequence_length,
                         .valid = a->valid,
                         .token = a->token,
                         .logits = s->logits,
                         .scores = s->scores,
                         .training = a->training,
                         .rng = ch_rng_make(a->rng.seed, CH_STREAM_SECOND_EXPERT, a->rng.sub),
                         .rng_base = a->rng_base,
                         .record = &s->record,
                         .counts = &s->counts,
                         .aux_scale = a->aux_scale};
}

void ch_moe_forward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved) {
  size_t mark = ch_arena_mark(&x->scratch);
  plan(x, a, saved);
  if (learned(a)) score(x, a, saved);
  ch_route_args routing = route_args(a, saved);
  a->router->route(x, &routing);
  x->ops->index(x, &(ch_index_args){.record = &saved->record});
  ch_expert_ffn_forward(x, a, &saved->record, saved->pre, saved->expert_y);
  x->ops->combine(
      x,
      &(ch_combine_args){
          .record = &saved->record, .d = a->d, .gated = 1, .out_acc = a->out_acc, .y = saved->expert_y, .out = a->out});
  ch_arena_release(&x->scratch, mark);
}

/* From dscores through softmax and X Wg: dWg += X^T dlogits, dx += dlogits Wg^T. */
static void score_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s, real *dscores) {
  size_t mark = ch_arena_mark(&x->scratch);
  int64_t count = (int64_t)a->n * a->d;
  real *room = s->jitter ? CH_NEW(&x->scratch, real, count) : NULL;
  real *dlogits = dscores;
  x->ops->softmax_backward(x, &(ch_softmax_args){.n = a->n, .m = a->e, .y = s->scores, .dy = dscores, .dx = dlogits});

  const real *in = router_input(x, a, s, room);
  x->ops->gemm(x, &(ch_gemm_args){.m = a->d,
                                  .n = a->e,
                                  .k = a->n,
                                  .trans_a = 1,
                                  .a = in,
                                  .b = dlogits,
                                  .c = a->gradients.router,
                                  .accumulate = 1,
                                  .exact = 1});
  ch_gemm_args back = {.m = a->n, .n = a->d, .k = a->e, .trans_b = 1, .a = dlogits, .b = a->weights.router, .exact = 1};
  if (!s->jitter) {
    back.c = a->dx;
    back.accumulate = 1;
    x->ops->gemm(x, &back);
  } else {
    back.c = room; /* the jittered input is done with */
    x->ops->gemm(x, &back);
    if (!ch_counting(x)) multiply(x, count, room, s->jitter, a->dx, 1);
  }
  ch_arena_release(&x->scratch, mark);
}

/* forward's steps in reverse. */
void ch_moe_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved) {
  size_t mark = ch_arena_mark(&x->scratch);
  const ch_record *r = &saved->record;
  real *dgate = CH_NEW(&x->scratch, real, r->max_slots);
  real *dy = saved->expert_y; /* combine_backward reads y before it writes dy there */
  x->ops->combine_backward(
      x, &(ch_combine_args){
             .record = r, .d = a->d, .gated = 1, .y = saved->expert_y, .dout = a->dout, .dy = dy, .dgate = dgate});
  ch_expert_ffn_backward(x, a, r, saved->pre, dy);
  if (a->router->backward) {
    real *dscores = CH_NEW(&x->scratch, real, (int64_t)a->n * a->e);
    ch_route_args routing = route_args(a, saved);
    routing.dgate = dgate;
    routing.dscores = dscores;
    a->router->backward(x, &routing);
    score_backward(x, a, saved, dscores);
  }
  ch_arena_release(&x->scratch, mark);
}
