#include "moe/scores.h"

#include "comm/collective.h"
#include "moe/at_owners.h"
#include "op/shards.h"

void ch_moe_gather(const ch_exec *x, const ch_moe_args *a, const char *what, real CH_DEV *all, int width) {
  if (!ch_counting(x) && x->comm->size > 1)
    ch_comm_gather(x->comm, what, CH_AS_HOST(real, all), (int64_t)a->n * width * (int64_t)sizeof(real));
}

int ch_moe_at_owners(const ch_exec *x, const ch_moe_args *a) {
  return ch_chooses_at_owners(x, a->router) && !(a->causal && a->router->causal);
}

/* The scores of this rank's tokens. */
static real CH_DEV *own_scores(const ch_exec *x, const ch_moe_args *a, const ch_moe_saved *s) {
  return ch_moe_at_owners(x, a) ? s->scores : s->scores + ch_moe_first_token(x, a) * a->e;
}

static void draw_jitter(ch_exec *x, const ch_moe_args *a, real CH_DEV *factor) {
  x->ops->jitter(x, &(ch_jitter_args){.n = a->n,
                                      .d = a->d,
                                      .jitter = a->options->jitter,
                                      .rng = ch_rng_make(a->rng.seed, CH_STREAM_ROUTER_JITTER, a->rng.sub),
                                      .rng_base = a->rng_base + (uint64_t)ch_moe_first_token(x, a),
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

void ch_moe_score(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *jittered = s->jitter ? CH_NEW(&x->scratch, real, (int64_t)a->n * a->d) : NULL;
  if (s->jitter) draw_jitter(x, a, s->jitter);
  const real CH_DEV *in = router_input(x, a, s, jittered);
  score_rows(x, a, in, s->scores ? s->logits : s->logits + ch_moe_first_token(x, a) * a->e);
  if (s->scores) x->ops->softmax(x, &(ch_softmax_args){.n = a->n, .m = a->e, .x = s->logits, .y = own_scores(x, a, s)});
  if (!ch_moe_at_owners(x, a)) ch_moe_gather(x, a, "scores", s->scores ? s->scores : s->logits, a->e);
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
  ch_gemm_args to_input = {.m = rows,
                           .n = a->d,
                           .k = a->e,
                           .trans_b = 1,
                           .a = c->dlogits + first * a->e,
                           .b = a->weights.router,
                           .c = c->din + first * a->d,
                           .accumulate = c->accumulate_din,
                           .exact = 1};
  x->ops->gemm(x, &(ch_gemm_args){.m = a->d,
                                  .n = a->e,
                                  .k = rows,
                                  .trans_a = 1,
                                  .a = c->in + first * a->d,
                                  .b = c->dlogits + first * a->e,
                                  .c = dw[0],
                                  .accumulate = accumulate,
                                  .exact = 1,
                                  .beside = &to_input});
}

void ch_moe_score_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s, real CH_DEV *dscores) {
  size_t mark = ch_arena_mark(&x->scratch);
  int64_t count = (int64_t)a->n * a->d;
  real CH_DEV *jittered = s->jitter ? CH_NEW(&x->scratch, real, count) : NULL;
  real CH_DEV *dlogits = dscores;
  if (s->scores)
    x->ops->softmax_backward(
        x, &(ch_softmax_args){.n = a->n, .m = a->e, .y = own_scores(x, a, s), .dy = dscores, .dx = dlogits});

  real CH_DEV *din = s->jitter ? CH_NEW(&x->scratch, real, count) : a->dx;
  score_task c = {a, router_input(x, a, s, jittered), dlogits, din, !s->jitter};
  const ch_sum sum = {.y = a->gradients.router, .count = (int64_t)a->d * a->e};
  ch_sum_shards(x, a->shards, &sum, 1, a->accumulate, score_rows_backward, &c);
  if (s->jitter)
    x->ops->multiply(x, &(ch_multiply_args){.count = count, .a = din, .b = s->jitter, .y = a->dx, .accumulate = 1});
  ch_arena_release(&x->scratch, mark);
}
