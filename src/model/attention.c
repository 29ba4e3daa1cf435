/* The attention half of a layer: out = in + Wo Attn(RMSNorm(in)). */
#include "model/attention.h"

#include <math.h>

#include "model/linear.h"
#include "model/shards.h"

static ch_attention_args attention_args(const ch_transformer *m, const ch_block *b, const ch_pass *p) {
  return (ch_attention_args){.B = p->B,
                             .T = p->T,
                             .H = m->config.heads,
                             .dh = m->d_head,
                             .scale = (real)(1 / sqrt((double)m->d_head)),
                             .q = b->qh,
                             .k = b->kh,
                             .v = b->vh,
                             .rel_bias = b->rel_bias->w,
                             .buckets = m->config.rel_buckets,
                             .max_distance = m->config.rel_max_distance,
                             .out = b->att,
                             .lse = b->lse};
}

void ch_attention_in(ch_exec *x, const ch_transformer *m, const ch_block *b, int64_t n, const real CH_DEV *in,
                     real CH_DEV *rstd, real CH_DEV *q, real CH_DEV *k, real CH_DEV *v) {
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *normed = CH_NEW(&x->scratch, real, n * m->config.d_model);
  ch_rmsnorm_args norm = ch_norm_args(m, b->attn_norm, n, in, rstd, normed);
  x->ops->rmsnorm(x, &norm);
  ch_linears(x, 3, (const ch_param *const[]){b->q, b->k, b->v}, n, normed, (real CH_DEV *const[]){q, k, v});
  ch_arena_release(&x->scratch, mark);
}

void ch_attention_forward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, const real CH_DEV *in,
                          real CH_DEV *out) {
  int64_t n = (int64_t)p->B * p->T, width = m->width;
  b->rstd1 = CH_NEW(&x->tape, real, n);
  b->qh = CH_NEW(&x->tape, real, n * width);
  b->kh = CH_NEW(&x->tape, real, n * width);
  b->vh = CH_NEW(&x->tape, real, n * width);
  b->att = CH_NEW(&x->tape, real, n * width);
  b->lse = CH_NEW(&x->tape, real, n * m->config.heads);
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *added = ch_half_begin(x, m, p, in, out);
  ch_pass part = ch_shard_of_pass(p);
  int64_t rows = (int64_t)part.B * p->T, d = m->config.d_model;
  for (int i = 0; i < ch_pass_shards(p); i++) {
    ch_block s = ch_shard_of_block(m, b, &part, i);
    ch_attention_in(x, m, &s, rows, in + i * rows * d, s.rstd1, s.qh, s.kh, s.vh);
    ch_attention_args attention = attention_args(m, &s, &part);
    x->ops->attention(x, &attention);
    ch_linear(x, s.o, rows, s.att, added + i * rows * d, 1);
  }
  ch_half_end(x, m, p, 2 * b->number + CH_DROP_ATTENTION, added, out);
  ch_arena_release(&x->scratch, mark);
}

typedef struct {
  const ch_transformer *m;
  const ch_block *b;
  ch_pass pass; /* over one shard */
  const real CH_DEV *dadded;
  real CH_DEV *dx;
} backward;

enum { DO, DV, DK, DQ, DREL_BIAS, DNORM, GRADIENTS };

static void shard_backward(ch_exec *x, void *context, int shard, real CH_DEV *const *g, int accumulate) {
  const backward *c = context;
  const ch_transformer *m = c->m;
  const ch_block b = ch_shard_of_block(m, c->b, &c->pass, shard);
  int64_t n = (int64_t)c->pass.B * c->pass.T, d = m->config.d_model, width = m->width;
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *datt = CH_NEW(&x->scratch, real, n * width), *dq = CH_NEW(&x->scratch, real, n * width),
              *dk = CH_NEW(&x->scratch, real, n * width), *dv = CH_NEW(&x->scratch, real, n * width);
  real CH_DEV *normed = CH_NEW(&x->scratch, real, n * d), *dnormed = CH_NEW(&x->scratch, real, n * d);
  ch_linear_backward(x, b.o, n, b.att, c->dadded + shard * n * d, datt, 0, g[DO], accumulate);
  ch_attention_args attention = attention_args(m, &b, &c->pass);
  attention.dout = datt;
  attention.dq = dq;
  attention.dk = dk;
  attention.dv = dv;
  attention.drel_bias = g[DREL_BIAS];
  x->ops->attention_backward(x, &attention);
  ch_rmsnorm_args norm = ch_norm_args(m, b.attn_norm, n, b.x, b.rstd1, normed);
  x->ops->rmsnorm(x, &norm); /* cheaper to do again than to keep */
  ch_linear_backward(x, b.v, n, normed, dv, dnormed, 0, g[DV], accumulate);
  ch_linear_backward(x, b.k, n, normed, dk, dnormed, 1, g[DK], accumulate);
  ch_linear_backward(x, b.q, n, normed, dq, dnormed, 1, g[DQ], accumulate);
  ch_norm_backward(x, &norm, dnormed, c->dx + shard * n * d, g[DNORM]);
  ch_arena_release(&x->scratch, mark);
}

void ch_attention_backward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, real CH_DEV *dx) {
  size_t mark = ch_arena_mark(&x->scratch);
  const real CH_DEV *dadded = ch_half_backward(x, m, p, 2 * b->number + CH_DROP_ATTENTION, dx);
  backward c = {m, b, ch_shard_of_pass(p), dadded, dx};
  const ch_sum sum[GRADIENTS] = {ch_sum_of(b->o), ch_sum_of(b->v),        ch_sum_of(b->k),
                                 ch_sum_of(b->q), ch_sum_of(b->rel_bias), ch_sum_of(b->attn_norm)};
  ch_sum_shards(x, ch_pass_shards(p), sum, GRADIENTS, p->accumulate, shard_backward, &c);
  ch_arena_release(&x->scratch, mark);
}
