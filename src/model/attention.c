/* The attention half of a layer: out = in + Wo Attn(RMSNorm(in)). */
#include <math.h>

#include "model/transformer.h"

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
  real CH_DEV *normed = CH_NEW(&x->scratch, real, n * m->config.d_model);
  ch_rmsnorm_args norm = ch_norm_args(m, b->attn_norm, n, in, b->rstd1, normed);
  x->ops->rmsnorm(x, &norm);
  ch_linear(x, b->q, n, normed, b->qh, 0);
  ch_linear(x, b->k, n, normed, b->kh, 0);
  ch_linear(x, b->v, n, normed, b->vh, 0);
  ch_attention_args attention = attention_args(m, b, p);
  x->ops->attention(x, &attention);
  x->ops->copy(x, &(ch_copy_args){.count = n * m->config.d_model, .x = in, .y = out});
  ch_linear(x, b->o, n, b->att, out, 1);
  ch_arena_release(&x->scratch, mark);
}

void ch_attention_backward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, real CH_DEV *dx) {
  int64_t n = (int64_t)p->B * p->T, d = m->config.d_model, width = m->width;
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *datt = CH_NEW(&x->scratch, real, n * width), *dq = CH_NEW(&x->scratch, real, n * width),
              *dk = CH_NEW(&x->scratch, real, n * width), *dv = CH_NEW(&x->scratch, real, n * width);
  real CH_DEV *normed = CH_NEW(&x->scratch, real, n * d), *dnormed = CH_NEW(&x->scratch, real, n * d);
  ch_linear_backward(x, p, b->o, b->att, dx, datt, 0);
  ch_attention_args attention = attention_args(m, b, p);
  attention.dout = datt;
  attention.dq = dq;
  attention.dk = dk;
  attention.dv = dv;
  attention.drel_bias = b->rel_bias->g;
  x->ops->attention_backward(x, &attention);
  ch_rmsnorm_args norm = ch_norm_args(m, b->attn_norm, n, b->x, b->rstd1, normed);
  x->ops->rmsnorm(x, &norm); /* cheaper to do again than to keep */
  ch_linear_backward(x, p, b->v, normed, dv, dnormed, 0);
  ch_linear_backward(x, p, b->k, normed, dk, dnormed, 1);
  ch_linear_backward(x, p, b->q, normed, dq, dnormed, 1);
  ch_norm_backward(x, &norm, b->attn_norm, dnormed, dx);
  ch_arena_release(&x->scratch, mark);
}
