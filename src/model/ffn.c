/* The feed-forward half of a layer: out = in + FFN(RMSNorm(in)), where FFN is GEGLU or an MoE layer. */
#include "model/transformer.h"

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

static ch_moe_args moe_args(const ch_transformer *m, const ch_block *b, const ch_pass *p, const ch_tokens *tokens,
                            const real CH_DEV *normed) {
  int n = p->B * p->T;
  return (ch_moe_args){.options = &m->config.router,
                       .router = m->router,
                       .n = n,
                       .d = m->config.d_model,
                       .h = ch_config_d_expert(&m->config),
                       .e = m->config.experts,
                       .sequence_length = p->T,
                       .layer = b->number,
                       .hook = p->hook,
                       .mask = tokens->mask,
                       .valid = tokens->valid,
                       .token = tokens->id,
                       .training = p->training,
                       .keep = p->gradients,
                       .causal = p->causal,
                       .by_threshold = p->by_threshold,
                       .observe = observed(m, b, p),
                       .observed = p->micro,
                       .rng = ch_rng_make(p->seed, CH_STREAM_ROUTER_JITTER, (uint32_t)b->number),
                       .rng_base = p->micro * (uint64_t)n,
                       .tally = tally_of(m, b, p),
                       .weights = {.router = b->router ? b->router->w : NULL,
                                   .w1 = b->w1->w,
                                   .w2 = b->w2->w,
                                   .w1_16 = b->w1->w16,
                                   .w2_16 = b->w2->w16,
                                   .thresholds = b->thresholds ? b->thresholds->w : NULL},
                       .x = normed};
}

static void geglu_forward(ch_exec *x, const ch_transformer *m, ch_block *b, int64_t n, const real CH_DEV *normed,
                          real CH_DEV *out) {
  int64_t h = m->config.d_hidden;
  b->g = CH_NEW(&x->tape, real, n * h);
  b->u = CH_NEW(&x->tape, real, n * h);
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *y = CH_NEW(&x->scratch, real, n * h);
  ch_linear(x, b->gate, n, normed, b->g, 0);
  ch_linear(x, b->up, n, normed, b->u, 0);
  x->ops->geglu(x, &(ch_gelu_args){.count = n * h, .x = b->g, .u = b->u, .y = y});
  ch_linear(x, b->down, n, y, out, 1);
  ch_arena_release(&x->scratch, mark);
}

static void geglu_backward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p,
                           const real CH_DEV *normed, const real CH_DEV *dout, real CH_DEV *dnormed) {
  int64_t n = (int64_t)p->B * p->T, h = m->config.d_hidden;
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *y = CH_NEW(&x->scratch, real, n * h), *dy = CH_NEW(&x->scratch, real, n * h);
  x->ops->geglu(x, &(ch_gelu_args){.count = n * h, .x = b->g, .u = b->u, .y = y});
  ch_linear_backward(x, p, b->down, y, dout, dy, 0);
  x->ops->geglu_backward(x, &(ch_gelu_args){.count = n * h, .x = b->g, .u = b->u, .dy = dy, .dx = b->g, .du = b->u});
  ch_linear_backward(x, p, b->gate, normed, b->g, dnormed, 0);
  ch_linear_backward(x, p, b->up, normed, b->u, dnormed, 1);
  ch_arena_release(&x->scratch, mark);
}

void ch_ffn_forward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, const ch_tokens *tokens,
                    const real CH_DEV *in, real CH_DEV *out) {
  int64_t n = (int64_t)p->B * p->T, d = m->config.d_model;
  b->rstd2 = CH_NEW(&x->tape, real, n);
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *normed = CH_NEW(&x->scratch, real, n * d);
  ch_rmsnorm_args norm = ch_norm_args(m, b->ffn_norm, n, in, b->rstd2, normed);
  x->ops->rmsnorm(x, &norm);
  x->ops->copy(x, &(ch_copy_args){.count = n * d, .x = in, .y = out});
  if (b->moe < 0) {
    geglu_forward(x, m, b, n, normed, out);
  } else {
    ch_moe_args moe = moe_args(m, b, p, tokens, normed);
    moe.out = out;
    moe.out_acc = 1;
    ch_moe_forward(x, &moe, &b->saved);
  }
  ch_arena_release(&x->scratch, mark);
}

void ch_ffn_backward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, const ch_tokens *tokens,
                     real CH_DEV *dx) {
  int64_t n = (int64_t)p->B * p->T, d = m->config.d_model;
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *normed = CH_NEW(&x->scratch, real, n * d), *dnormed = CH_NEW(&x->scratch, real, n * d);
  ch_rmsnorm_args norm = ch_norm_args(m, b->ffn_norm, n, b->mid, b->rstd2, normed);
  x->ops->rmsnorm(x, &norm);
  if (b->moe < 0) {
    geglu_backward(x, m, b, p, normed, dx, dnormed);
  } else {
    ch_moe_args moe = moe_args(m, b, p, tokens, normed);
    moe.dout = dx;
    moe.dx = dnormed;
    moe.accumulate = p->accumulate;
    moe.aux_scale = p->aux_scale * (real)m->config.router.aux_loss_weight;
    moe.gradients = (ch_moe_gradients){.router = b->router ? b->router->g : NULL, .w1 = b->w1->g, .w2 = b->w2->g};
    ch_moe_backward(x, &moe, &b->saved);
  }
  ch_norm_backward(x, &norm, b->ffn_norm, dnormed, dx);
  ch_arena_release(&x->scratch, mark);
}
