/* The feed-forward half of a layer: out = in + FFN(RMSNorm(in)), where FFN is dense, or an MoE layer, optionally with
 * shared experts (a dense layer whose output is added). */
#include "comm/collective.h"
#include "model/block.h"
#include "model/ranks.h"
#include "moe/prefer.h"

/* The layer's router state if this pass updates it, else NULL. */
static real CH_DEV *observed(const ch_transformer *m, const ch_layer *b, const ch_pass *p) {
  if (!p->observe || !m->router->observe || (m->router->update_per_step && p->gradients)) return NULL;
  return ch_router_has_centroids(m->router) ? b->router->w : b->thresholds->w;
}

/* The layer's block of the pass's sums and counts. */
static ch_route_tally tally_of(const ch_transformer *m, const ch_layer *b, const ch_pass *p) {
  double CH_DEV *sums = p->sums + CH_PASS_SUMS;
  int64_t CH_DEV *counts = (int64_t CH_DEV *)(sums + m->moe_layers * CH_TALLY_SUMS);
  return (ch_route_tally){sums + b->moe * CH_TALLY_SUMS, counts + (int64_t)b->moe * CH_TALLY_COUNTS(m->config.experts)};
}

static ch_moe_args moe_args(const ch_exec *x, const ch_transformer *m, const ch_layer *b, const ch_pass *p,
                            const real CH_DEV *normed) {
  ch_moe_args a = {.route = p->route,
                   .h = (int)ch_local_count(&x->grid.tp_group, ch_config_d_expert(&m->config)),
                   .activation = (ch_activation)m->config.expert_activation,
                   .grad_chunks = ch_pass_grad_chunks(p),
                   .layer = b->number,
                   .hook = p->hook,
                   .keep = p->gradients,
                   .tally = tally_of(m, b, p),
                   .weights = {.w1 = b->w1->w,
                               .w2 = b->w2->w,
                               .w1_16 = b->w1->w16,
                               .w2_16 = b->w2->w16,
                               .w1_8 = b->w1->w8,
                               .w2_8 = b->w2->w8}};
  if (b->w3) a.weights.w3 = b->w3->w, a.weights.w3_16 = b->w3->w16, a.weights.w3_8 = b->w3->w8;
  a.route.options = ch_pass_scales(p) ? &b->scaled : &b->routing;
  a.route.draws.rng.sub = (uint32_t)b->number;
  a.route.x = normed;
  a.route.weight = b->router ? b->router->w : NULL;
  a.route.router_state.thresholds = b->thresholds ? b->thresholds->w : NULL;
  if (p->forced_assignment)
    a.route.tokens.assignment = p->forced_assignment + (int64_t)b->moe * p->route.n * p->route.e;
  a.route.router_state.updated = observed(m, b, p);
  if (p->route.prefer) a.route.prefer = p->route.prefer + b->moe;
  a.route.scale = (ch_route_scale){p->aux_scale * (real)m->config.router.aux_loss_weight,
                                   p->aux_scale * (real)m->config.router.z_loss_weight};
  return a;
}

/* Recomputes y from saved activations: `count` elements from `first` on. Backward sets further fields. */
static ch_activate_args activation_of(const ch_dense *f, int64_t first, int64_t count, real CH_DEV *y) {
  return (ch_activate_args){.activation = f->activation,
                            .count = count,
                            .x = (f->gate ? f->g : f->u) + first,
                            .u = f->gate ? f->u + first : NULL,
                            .y = y};
}

/* out [B,T,d] += act(normed Wup^T) Wdown^T, or (act(normed Wgate^T) * (normed Wup^T)) Wdown^T. Wup, Wgate [h,d],
 * Wdown [d,h]. */
static void dense_forward(ch_exec *x, ch_dense *f, const ch_pass *p, const real CH_DEV *normed, real CH_DEV *out) {
  ch_pass part = ch_grad_chunk_of_pass(p);
  int64_t n = (int64_t)part.B * p->T, h = f->up->shape[0], d = f->up->shape[1];
  f->g = f->gate ? CH_NEW(&x->tape, real, n * ch_pass_grad_chunks(p) * h) : NULL;
  f->u = CH_NEW(&x->tape, real, n * ch_pass_grad_chunks(p) * h);
  CH_SCRATCH(x);
  real CH_DEV *y = CH_NEW(&x->scratch, real, n * h);
  for (int i = 0; i < ch_pass_grad_chunks(p); i++) {
    ch_activate_args a = activation_of(f, i * n * h, n * h, y);
    real CH_DEV *u = f->u + i * n * h;
    if (f->gate)
      ch_linears(x, 2, (const ch_param *const[]){f->gate, f->up}, n, normed + i * n * d,
                 (real CH_DEV *const[]){f->g + i * n * h, u});
    else
      ch_linear(x, f->up, n, normed + i * n * d, u, 0);
    x->ops->activate(x, &a);
    ch_linear(x, f->down, n, y, out + i * n * d, 1);
  }
}

typedef struct {
  const ch_transformer *m;
  const ch_layer *b;
  int64_t n;                   /* rows of a gradient chunk */
  const ch_rmsnorm_args *norm; /* of all rows */
  const real CH_DEV *dadded;   /* [rows,d]; this and the arrays below have the rows of all gradient chunks */
  real CH_DEV *dnormed, *dx;
} ffn_backward;

enum { DDOWN, DUP, DGATE, DENSE_GRADIENTS };

/* Backward of the dense layer. In an MoE layer it adds to dnormed, which already holds the experts' gradient. */
static void dense_backward(ch_exec *x, void *context, int shard, real CH_DEV *const *dw, int accumulate) {
  const ffn_backward *c = context;
  const ch_dense *f = &c->b->dense;
  int64_t n = c->n, h = f->up->shape[0], first = shard * n * f->up->shape[1], at = shard * n * h;
  const real CH_DEV *normed = c->norm->y + first, *dout = c->dadded + first;
  CH_SCRATCH(x);
  real CH_DEV *y = CH_NEW(&x->scratch, real, n * h), *dy = CH_NEW(&x->scratch, real, n * h);
  ch_activate_args a = activation_of(f, at, n * h, y);
  a.dy = dy;
  a.dx = (f->gate ? f->g : f->u) + at;
  a.du = f->u + at;
  ch_linear_backward(x, f->down, n, NULL, dout, dy, 0, NULL, 0);
  x->ops->activate_backward(x, &a);
  ch_linear_backward(x, f->down, n, y, dout, NULL, 0, dw[DDOWN], accumulate);
  int add = c->b->moe >= 0;
  if (f->gate) ch_linear_backward(x, f->gate, n, normed, a.dx, c->dnormed + first, add, dw[DGATE], accumulate);
  ch_linear_backward(x, f->up, n, normed, a.du, c->dnormed + first, add || f->gate, dw[DUP], accumulate);
}

static void norm_backward(ch_exec *x, void *context, int shard, real CH_DEV *const *dw, int accumulate) {
  (void)accumulate; /* a sum */
  const ffn_backward *c = context;
  int64_t first = shard * c->n, d = c->m->config.d_model;
  ch_rmsnorm_args norm = *c->norm;
  norm.n = c->n;
  norm.x += first * d;
  norm.rstd += first;
  ch_norm_backward(x, &norm, c->dnormed + first * d, c->dx + first * d, dw[0]);
}

/* in, out [B,T,d] */
void ch_ffn_forward(ch_exec *x, const ch_transformer *m, ch_layer *b, const ch_pass *p, const real CH_DEV *in,
                    real CH_DEV *out) {
  int64_t n = (int64_t)p->B * p->T;
  b->rstd2 = CH_NEW(&x->tape, real, n);
  CH_SCRATCH(x);
  const ch_rmsnorm_args norm = ch_norm(x, m, b->ffn_norm, n, in, b->rstd2);
  real CH_DEV *added = ch_half_begin(x, m, p, in, out);
  if (b->moe < 0) ch_prefetch_next(x); /* an MoE layer prefetches when its first rows have arrived */
  if (b->dense.up) dense_forward(x, &b->dense, p, norm.y, added);
  if (b->moe >= 0) {
    ch_moe_args moe = moe_args(x, m, b, p, norm.y);
    moe.out = added;
    moe.out_acc = 1;
    ch_moe_forward(x, &moe, &b->saved);
  }
  ch_half_end(x, m, p, 2 * b->number + CH_DROP_FFN, added, out);
}

/* dx [B,T,d]: in, the gradient of out; out, the gradient of in. */
void ch_ffn_backward(ch_exec *x, const ch_transformer *m, ch_layer *b, const ch_pass *p, real CH_DEV *dx) {
  int64_t n = (int64_t)p->B * p->T, d = m->config.d_model;
  int grad_chunks = ch_pass_grad_chunks(p);
  CH_SCRATCH(x);
  const ch_rmsnorm_args norm = ch_norm(x, m, b->ffn_norm, n, b->mid, b->rstd2);
  real CH_DEV *dnormed = CH_NEW(&x->scratch, real, n * d);
  const real CH_DEV *dadded = ch_half_backward(x, m, p, 2 * b->number + CH_DROP_FFN, dx);
  ffn_backward c = {m, b, n / grad_chunks, &norm, dadded, dnormed, dx};
  if (b->moe < 0) {
    ch_prefetch_next(x);
  } else {
    ch_moe_args moe = moe_args(x, m, b, p, norm.y);
    moe.dout = dadded;
    moe.dx = dnormed;
    moe.accumulate = p->accumulate;
    moe.gradients = (ch_moe_gradients){
        .router = b->router ? b->router->g : NULL, .w1 = b->w1->g, .w2 = b->w2->g, .w3 = b->w3 ? b->w3->g : NULL};
    ch_moe_backward(x, &moe, &b->saved);
    if (!p->partial) ch_ranks_sum_experts(x, b);
  }
  if (b->dense.up) {
    ch_sum sums[DENSE_GRADIENTS] = {ch_sum_of(b->dense.down), ch_sum_of(b->dense.up)};
    if (b->dense.gate) sums[DGATE] = ch_sum_of(b->dense.gate);
    ch_sum_grad_chunks(x, grad_chunks, sums, b->dense.gate ? DENSE_GRADIENTS : DGATE, p->accumulate, dense_backward,
                       &c);
  }
  const ch_sum sum = ch_sum_of(b->ffn_norm);
  ch_sum_grad_chunks(x, grad_chunks, &sum, 1, p->accumulate, norm_backward, &c);
}
