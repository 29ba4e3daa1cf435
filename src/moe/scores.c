#include "moe/scores.h"

#include "moe/gates.h"
#include "moe/route.h"
#include "op/grad_chunks.h"

/* The scores of this rank's tokens, and their logits. */
static real CH_DEV *local_scores(const ch_exec *x, const ch_moe_args *a, const ch_moe_saved *s) {
  return ch_routes_sharded(x, &a->route) ? s->routing.scores
                                         : s->routing.scores + ch_moe_first_token(x, a) * a->route.e;
}

static real CH_DEV *local_logits(const ch_exec *x, const ch_moe_args *a, const ch_moe_saved *s) {
  return s->routing.scores ? s->routing.logits : s->routing.logits + ch_moe_first_token(x, a) * a->route.e;
}

static void draw_jitter(ch_exec *x, const ch_moe_args *a, real CH_DEV *factor) {
  const ch_route_args *route = &a->route;
  CH_OP(x, jitter, .n = ch_moe_rows(x, a), .d = route->d, .jitter = route->options->jitter,
        .rng = ch_rng_make(route->draws.rng.seed, CH_STREAM_ROUTER_JITTER, route->draws.rng.sub),
        .rng_base = route->draws.base + (uint64_t)ch_moe_first_token(x, a), .factor = factor);
}

/* The router's input: x, or x jittered into `jittered`. */
static const real CH_DEV *router_input(ch_exec *x, const ch_moe_args *a, const ch_moe_saved *s, real CH_DEV *jittered) {
  if (!s->jitter) return a->route.x;
  CH_OP(x, multiply, .count = (int64_t)ch_moe_rows(x, a) * a->route.d, .a = a->route.x, .b = s->jitter, .y = jittered);
  return jittered;
}

/* logits = X Wg, in full precision. */
static void score_rows(ch_exec *x, const ch_moe_args *a, const real CH_DEV *in, real CH_DEV *logits) {
  int64_t rows = ch_moe_rows(x, a) / a->grad_chunks, d = a->route.d, e = a->route.e;
  for (int i = 0; i < a->grad_chunks; i++)
    CH_OP(x, gemm, .m = rows, .n = e, .k = d, .a = in + i * rows * d, .b = a->route.weight, .c = logits + i * rows * e,
          .exact = 1);
}

void ch_moe_score(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  CH_SCRATCH(x);
  ch_routing *r = &s->routing;
  int64_t n = ch_moe_rows(x, a);
  real CH_DEV *jittered = s->jitter ? CH_NEW(&x->scratch, real, n * a->route.d) : NULL;
  if (s->jitter) draw_jitter(x, a, s->jitter);
  const real CH_DEV *in = router_input(x, a, s, jittered);
  score_rows(x, a, in, local_logits(x, a, s));
  ch_route_z_loss(x, &a->route, ch_moe_first_token(x, a), (int)n, local_logits(x, a, s));
  if (r->scores) ch_scores_of(x, a->route.options, n, a->route.e, r->logits, local_scores(x, a, s));
  if (r->lse) ch_gather_shares(x, x->comm, "z-loss", r->lse, a->route.n, sizeof *r->lse);
  if (!ch_routes_sharded(x, &a->route))
    ch_gather_shares(x, x->comm, "scores", r->scores ? r->scores : r->logits, a->route.n,
                     a->route.e * (int64_t)sizeof(real));
}

/* Gradient of X Wg. */
typedef struct {
  const ch_moe_args *a;
  const real CH_DEV *in, *dlogits;
  real CH_DEV *din;
  int accumulate_din;
} score_task;

/* Backward of one gradient chunk: dWg (=|+=) X^T dlogits, din (=|+=) dlogits Wg^T. */
static void score_rows_backward(ch_exec *x, void *context, int shard, real CH_DEV *const *dw, int accumulate) {
  const score_task *c = context;
  const ch_moe_args *a = c->a;
  int64_t rows = ch_moe_rows(x, a) / a->grad_chunks, first = shard * rows, d = a->route.d, e = a->route.e;
  ch_gemm_args to_input = {.m = rows,
                           .n = d,
                           .k = e,
                           .trans_b = 1,
                           .a = c->dlogits + first * e,
                           .b = a->route.weight,
                           .c = c->din + first * d,
                           .accumulate = c->accumulate_din,
                           .exact = 1};
  CH_OP(x, gemm, .m = d, .n = e, .k = rows, .trans_a = 1, .a = c->in + first * d, .b = c->dlogits + first * e,
        .c = dw[0], .accumulate = accumulate, .exact = 1, .second = &to_input);
}

void ch_moe_score_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s, real CH_DEV *dscores) {
  CH_SCRATCH(x);
  int64_t n = ch_moe_rows(x, a), count = n * a->route.d;
  real CH_DEV *jittered = s->jitter ? CH_NEW(&x->scratch, real, count) : NULL;
  real CH_DEV *dlogits = dscores;
  if (s->routing.scores) ch_scores_of_backward(x, a->route.options, n, a->route.e, local_scores(x, a, s), dlogits);
  ch_route_z_loss_backward(x, &a->route, ch_moe_first_token(x, a), (int)n, local_logits(x, a, s), dlogits);

  real CH_DEV *din = s->jitter ? CH_NEW(&x->scratch, real, count) : a->dx;
  score_task c = {a, router_input(x, a, s, jittered), dlogits, din, !s->jitter};
  const ch_sum sum = {.y = a->gradients.router, .count = (int64_t)a->route.d * a->route.e};
  ch_sum_grad_chunks(x, a->grad_chunks, &sum, 1, a->accumulate, score_rows_backward, &c);
  if (s->jitter) CH_OP(x, multiply, .count = count, .a = din, .b = s->jitter, .y = a->dx, .accumulate = 1);
}
