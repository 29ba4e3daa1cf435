/* The feed-forward half of a layer: out = in + FFN(RMSNorm(in)), where FFN is GEGLU or an MoE layer. */
#include "comm/collective.h"
#include "model/transformer.h"
#include "op/visits.h"

/* What the router of a layer keeps, where this pass adds to it. */
static real CH_DEV *observed(const ch_transformer *m, const ch_block *b, const ch_pass *p) {
  if (!p->observe || !m->router->observe) return NULL;
  return ch_router_has_centroids(m->router) ? b->router->w : b->thresholds->w;
}

/* Where the layer's numbers stand among the pass's. */
static ch_route_tally tally_of(const ch_transformer *m, const ch_block *b, const ch_pass *p) {
  double CH_DEV *sums = p->sums + CH_PASS_SUMS;
  int64_t CH_DEV *counts = (int64_t CH_DEV *)(sums + m->moe_layers * CH_TALLY_SUMS);
  return (ch_route_tally){sums + b->moe * CH_TALLY_SUMS, counts + (int64_t)b->moe * CH_TALLY_COUNTS(m->config.experts)};
}

static ch_moe_args moe_args(const ch_exec *x, const ch_transformer *m, const ch_block *b, const ch_pass *p,
                            const real CH_DEV *normed) {
  ch_moe_args a = {.route = p->route,
                   .h = ch_config_d_expert(&m->config) / x->grid.hidden.size,
                   .shards = ch_pass_shards(p),
                   .layer = b->number,
                   .hook = p->hook,
                   .keep = p->gradients,
                   .weights = {.w1 = b->w1->w, .w2 = b->w2->w, .w1_16 = b->w1->w16, .w2_16 = b->w2->w16}};
  a.route.rng.sub = (uint32_t)b->number;
  a.route.x = normed;
  a.route.weight = b->router ? b->router->w : NULL;
  a.route.thresholds = b->thresholds ? b->thresholds->w : NULL;
  if (p->history) a.route.history = p->history[b->moe];
  a.route.tally = tally_of(m, b, p);
  a.route.state = observed(m, b, p);
  a.route.aux_scale = p->aux_scale * (real)m->config.router.aux_loss_weight;
  return a;
}

static void geglu_forward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, const real CH_DEV *normed,
                          real CH_DEV *out) {
  ch_pass part = ch_shard_of_pass(p);
  int64_t n = (int64_t)part.B * p->T, d = m->config.d_model, h = m->config.d_hidden;
  b->g = CH_NEW(&x->tape, real, n * ch_pass_shards(p) * h);
  b->u = CH_NEW(&x->tape, real, n * ch_pass_shards(p) * h);
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *y = CH_NEW(&x->scratch, real, n * h);
  for (int i = 0; i < ch_pass_shards(p); i++) {
    real CH_DEV *g = b->g + i * n * h, *u = b->u + i * n * h;
    ch_linears(x, 2, (const ch_param *const[]){b->gate, b->up}, n, normed + i * n * d, (real CH_DEV *const[]){g, u});
    x->ops->geglu(x, &(ch_gelu_args){.count = n * h, .x = g, .u = u, .y = y});
    ch_linear(x, b->down, n, y, out + i * n * d, 1);
  }
  ch_arena_release(&x->scratch, mark);
}

typedef struct {
  const ch_transformer *m;
  const ch_block *b;
  int64_t n;                   /* rows of a shard */
  const ch_rmsnorm_args *norm; /* of all rows */
  const real CH_DEV *dadded;   /* [rows,d] of all shards, and so on */
  real CH_DEV *dnormed, *dx;
} backward;

enum { DDOWN, DGATE, DUP, GEGLU_GRADIENTS };

static void geglu_backward(ch_exec *x, void *context, int shard, real CH_DEV *const *dw, int accumulate) {
  const backward *c = context;
  const ch_block *b = c->b;
  int64_t n = c->n, d = c->m->config.d_model, h = c->m->config.d_hidden;
  const real CH_DEV *normed = c->norm->y + shard * n * d;
  real CH_DEV *dnormed = c->dnormed + shard * n * d, *g = b->g + shard * n * h, *u = b->u + shard * n * h;
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *y = CH_NEW(&x->scratch, real, n * h), *dy = CH_NEW(&x->scratch, real, n * h);
  const real CH_DEV *dout = c->dadded + shard * n * d;
  ch_linear_backward(x, b->down, n, NULL, dout, dy, 0, NULL, 0);
  x->ops->geglu_backward(x, &(ch_gelu_args){.count = n * h, .x = g, .u = u, .y = y, .dy = dy, .dx = g, .du = u});
  ch_linear_backward(x, b->down, n, y, dout, NULL, 0, dw[DDOWN], accumulate);
  ch_linear_backward(x, b->gate, n, normed, g, dnormed, 0, dw[DGATE], accumulate);
  ch_linear_backward(x, b->up, n, normed, u, dnormed, 1, dw[DUP], accumulate);
  ch_arena_release(&x->scratch, mark);
}

static void norm_backward(ch_exec *x, void *context, int shard, real CH_DEV *const *dw, int accumulate) {
  (void)accumulate; /* a sum */
  const backward *c = context;
  int64_t first = shard * c->n, d = c->m->config.d_model;
  ch_rmsnorm_args norm = *c->norm;
  norm.n = c->n;
  norm.x += first * d;
  norm.rstd += first;
  ch_norm_backward(x, &norm, c->dnormed + first * d, c->dx + first * d, dw[0]);
}

void ch_ffn_forward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, const real CH_DEV *in,
                    real CH_DEV *out) {
  int64_t n = (int64_t)p->B * p->T, d = m->config.d_model;
  b->rstd2 = CH_NEW(&x->tape, real, n);
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *normed = CH_NEW(&x->scratch, real, n * d);
  ch_rmsnorm_args norm = ch_norm_args(m, b->ffn_norm, n, in, b->rstd2, normed);
  x->ops->rmsnorm(x, &norm);
  real CH_DEV *added = ch_half_begin(x, m, p, in, out);
  if (b->moe < 0) {
    ch_visits_next(x); /* an MoE layer takes that step when its first rows are there */
    geglu_forward(x, m, b, p, normed, added);
  } else {
    ch_moe_args moe = moe_args(x, m, b, p, normed);
    moe.out = added;
    moe.out_acc = 1;
    ch_moe_forward(x, &moe, &b->saved);
  }
  ch_half_end(x, m, p, 2 * b->number + CH_DROP_FFN, added, out);
  ch_arena_release(&x->scratch, mark);
}

/* Gradients of experts, each replica's from its own tokens, become the sum over replicas: in the order of their tokens,
 * on every rank that holds the experts, so that all update them alike. */
static void sum_replicas(ch_exec *x, const ch_block *b) {
  const ch_comm *holders = &x->grid.holders;
  enum { TENSORS = 2 };
  const ch_param *tensor[TENSORS] = {b->w1, b->w2};
  size_t mark = ch_arena_mark(&x->scratch);
  const ch_sum_room room = ch_comm_sum_room(holders, holders->size, TENSORS, &x->scratch);
  real *gradient[TENSORS];
  ch_comm_array array[TENSORS];
  for (int i = 0; i < TENSORS; i++) {
    int64_t e = tensor[i]->shape[0], groups = x->grid.experts.size, most = (e + groups - 1) / groups;
    gradient[i] = CH_AS_HOST(real, tensor[i]->g);
    array[i] = (ch_comm_array){
        .piece = &gradient[i], .count = tensor[i]->count, .most = most * tensor[i]->shape[1] * tensor[i]->part.columns};
  }
  if (!ch_counting(x)) ch_comm_sum(holders, "gradients of experts", holders->size, array, TENSORS, &room);
  ch_arena_release(&x->scratch, mark);
}

void ch_ffn_backward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, real CH_DEV *dx) {
  int64_t n = (int64_t)p->B * p->T, d = m->config.d_model;
  int shards = ch_pass_shards(p);
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *normed = CH_NEW(&x->scratch, real, n * d), *dnormed = CH_NEW(&x->scratch, real, n * d);
  ch_rmsnorm_args norm = ch_norm_args(m, b->ffn_norm, n, b->mid, b->rstd2, normed);
  x->ops->rmsnorm(x, &norm);
  const real CH_DEV *dadded = ch_half_backward(x, m, p, 2 * b->number + CH_DROP_FFN, dx);
  backward c = {m, b, n / shards, &norm, dadded, dnormed, dx};
  if (b->moe < 0) {
    ch_visits_next(x);
    const ch_sum sum[GEGLU_GRADIENTS] = {ch_sum_of(b->down), ch_sum_of(b->gate), ch_sum_of(b->up)};
    ch_sum_shards(x, shards, sum, GEGLU_GRADIENTS, p->accumulate, geglu_backward, &c);
  } else {
    ch_moe_args moe = moe_args(x, m, b, p, normed);
    moe.dout = dadded;
    moe.dx = dnormed;
    moe.accumulate = p->accumulate;
    moe.gradients = (ch_moe_gradients){.router = b->router ? b->router->g : NULL, .w1 = b->w1->g, .w2 = b->w2->g};
    ch_moe_backward(x, &moe, &b->saved);
    if (!p->partial) sum_replicas(x, b);
  }
  const ch_sum sum = ch_sum_of(b->ffn_norm);
  ch_sum_shards(x, shards, &sum, 1, p->accumulate, norm_backward, &c);
  ch_arena_release(&x->scratch, mark);
}
