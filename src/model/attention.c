/* The attention half of a layer: out = in + Wo Attn(RMSNorm(in)). */
#include <math.h>

#include "model/block.h"
#include "op/prefetch.h"

/* Queries and keys, as scores use them: normalized (per head or over all heads) and rotated by position as configured.
 * Without a norm they are rotated in place; with a norm the results are in scratch. */
typedef struct {
  real CH_DEV *q, *k;             /* [n,heads,dh] and [n,kv_heads,dh] */
  ch_rmsnorm_args q_norm, k_norm; /* arguments of the forward calls, for backward */
} queries;

/* Arguments for gradient chunk number `shard`; p covers that chunk alone. */
static ch_attention_args attention_args(const ch_transformer *m, const ch_layer *b, const ch_pass *p, int shard,
                                        const queries *in) {
  return (ch_attention_args){.B = p->B,
                             .T = p->T,
                             .H = m->config.heads,
                             .kv_heads = m->kv_heads,
                             .dh = m->d_head,
                             .bidirectional = ch_config_bidirectional(&m->config),
                             .length = p->length ? p->length + (int64_t)shard * p->B : NULL,
                             .scale = (real)(1 / sqrt((double)m->d_head)),
                             .q = in->q,
                             .k = in->k,
                             .v = b->vh,
                             .rel_bias = b->rel_bias ? b->rel_bias->w : NULL,
                             .buckets = m->config.rel_buckets,
                             .max_distance = m->config.rel_max_distance,
                             .out = b->att,
                             .lse = b->lse};
}

/* Projects the rows of a pass: b's qh [n,width], kh and vh [n,kv_width] from RMSNorm(in). rstd1 [n] is stored for
 * backward. */
static void project(ch_exec *x, const ch_transformer *m, const ch_layer *b, int64_t n, const real CH_DEV *in) {
  CH_SCRATCH(x);
  const ch_rmsnorm_args norm = ch_norm(x, m, b->attn_norm, n, in, b->rstd1);
  ch_linears(x, 3, (const ch_param *const[]){b->q, b->k, b->v}, n, norm.y, (real CH_DEV *const[]){b->qh, b->kh, b->vh});
}

/* ---- queries and keys: [n,heads,dh], normalized per head or over all heads, then rotated ---- */

void ch_rope_table_make(ch_exec *x, const ch_transformer *m, int positions, real CH_DEV *table) {
  CH_OP(x, rope_table, .positions = positions, .rotated = m->rotated, .theta = m->config.rope_theta,
        .rope_table = table);
}

/* Rotates rows [n,heads,dh] in place; back: by the negative angles. */
static void rotate(ch_exec *x, const ch_transformer *m, const ch_pass *p, int heads, int back, real CH_DEV *rows) {
  if (m->rotated)
    CH_OP(x, rope, .n = (int64_t)p->B * p->T, .heads = heads, .dh = m->d_head, .rotated = m->rotated, .back = back,
          .T = p->T, .position = p->position, .rope_table = p->rope_table, .x = rows);
}

/* Normalizes and rotates rows [n,heads,dh]; w [dh] or [heads*dh] or NULL. */
static real CH_DEV *prepare_queries(ch_exec *x, const ch_transformer *m, const ch_pass *p, const ch_param *w, int heads,
                                    real CH_DEV *rows, ch_rmsnorm_args *norm) {
  if (w) {
    int together = m->config.qk_norm_whole ? heads : 1;
    int64_t n = (int64_t)p->B * p->T * heads / together, d = (int64_t)m->d_head * together;
    *norm = (ch_rmsnorm_args){.n = n, .d = (int)d, .eps = (real)m->config.norm_eps, .x = rows, .w = w->w};
    norm->y = rows = CH_NEW(&x->scratch, real, n * d);
    norm->rstd = CH_NEW(&x->scratch, real, n);
    x->ops->rmsnorm(x, norm);
  }
  rotate(x, m, p, heads, 0, rows);
  return rows;
}

static queries prepare(ch_exec *x, const ch_transformer *m, const ch_layer *b, const ch_pass *p) {
  queries in = {0};
  in.q = prepare_queries(x, m, p, b->q_norm, m->config.heads, b->qh, &in.q_norm);
  in.k = prepare_queries(x, m, p, b->k_norm, m->kv_heads, b->kh, &in.k_norm);
  return in;
}

/* Backward of `prepare`: from the gradient `d` of normalized and rotated rows to the gradient of the projected rows, in
 * one of the two buffers. dw is the norm weight's gradient. */
static real CH_DEV *prepare_backward(ch_exec *x, const ch_transformer *m, const ch_pass *p, int heads,
                                     ch_rmsnorm_args *norm, real CH_DEV *d, real CH_DEV *dw) {
  rotate(x, m, p, heads, 1, d);
  if (!norm->w) return d;
  norm->dy = d;
  norm->dx = norm->y;
  norm->dw = dw;
  x->ops->rmsnorm_backward(x, norm);
  return norm->dx;
}

static void attend(ch_exec *x, const ch_transformer *m, const ch_layer *b, const ch_pass *p, int shard,
                   const queries *in) {
  ch_attention_args attention = attention_args(m, b, p, shard, in);
  x->ops->attention(x, &attention);
}

/* Appends the new tokens of every sequence to its cache and attends to all cached tokens. */
static void attend_cached(ch_exec *x, const ch_transformer *m, const ch_layer *b, const ch_pass *p, const queries *in) {
  const ch_kv_cache *c = p->cache;
  CH_OP(x, attention_cached, .B = c->sequences, .H = m->config.heads, .kv_heads = m->kv_heads, .dh = m->d_head,
        .positions = c->positions, .max_rows = p->T, .begin = c->begin, .past = c->past,
        .scale = (real)(1 / sqrt((double)m->d_head)), .q = in->q, .k = in->k, .v = b->vh, .keys = c->keys[b->number],
        .values = c->values[b->number], .bias = c->bias[b->number], .out = b->att);
}

/* in, out [B,T,d] */
void ch_attention_forward(ch_exec *x, const ch_transformer *m, ch_layer *b, const ch_pass *p, const real CH_DEV *in,
                          real CH_DEV *out) {
  int64_t n = (int64_t)p->B * p->T;
  ch_prefetch_next(x);
  b->rstd1 = CH_NEW(&x->tape, real, n);
  b->qh = CH_NEW(&x->tape, real, n * m->width);
  b->kh = CH_NEW(&x->tape, real, n * m->kv_width);
  b->vh = CH_NEW(&x->tape, real, n * m->kv_width);
  b->att = CH_NEW(&x->tape, real, n * m->width);
  b->lse = CH_NEW(&x->tape, real, n * m->config.heads);
  CH_SCRATCH(x);
  real CH_DEV *added = ch_half_begin(x, m, p, in, out);
  ch_pass part = ch_grad_chunk_of_pass(p);
  int64_t rows = (int64_t)part.B * p->T, d = m->config.d_model;
  for (int i = 0; i < ch_pass_grad_chunks(p); i++) {
    size_t shard_mark = ch_arena_mark(&x->scratch);
    ch_layer s = ch_grad_chunk_of_layer(m, b, &part, i);
    project(x, m, &s, rows, in + i * rows * d);
    queries prepared = prepare(x, m, &s, &part);
    if (p->cache)
      attend_cached(x, m, &s, p, &prepared);
    else
      attend(x, m, &s, &part, i, &prepared);
    ch_arena_release(&x->scratch, shard_mark);
    ch_linear(x, s.o, rows, s.att, added + i * rows * d, 1);
  }
  ch_half_end(x, m, p, 2 * b->number + CH_DROP_ATTENTION, added, out);
}

/* Gradients that are summed over gradient chunks; a layer may lack the last three. */
enum { DO, DV, DK, DQ, DNORM, DREL_BIAS, DQ_NORM, DK_NORM, GRADIENTS };

typedef struct {
  const ch_transformer *m;
  const ch_layer *b;
  ch_pass pass;              /* over one gradient chunk */
  const real CH_DEV *dadded; /* [B,T,d] of all chunks */
  real CH_DEV *dx;           /* [B,T,d] */
  int place[GRADIENTS];      /* index of each gradient among the sums */
} attention_pass;

static void chunk_backward(ch_exec *x, void *context, int shard, real CH_DEV *const *g, int accumulate) {
  const attention_pass *c = context;
  const ch_transformer *m = c->m;
  const ch_pass *p = &c->pass;
  const ch_layer b = ch_grad_chunk_of_layer(m, c->b, p, shard);
  int64_t n = (int64_t)p->B * p->T, d = m->config.d_model;
  CH_SCRATCH(x);
  real CH_DEV *datt = CH_NEW(&x->scratch, real, n * m->width), *dq = CH_NEW(&x->scratch, real, n * m->width),
              *dk = CH_NEW(&x->scratch, real, n * m->kv_width), *dv = CH_NEW(&x->scratch, real, n * m->kv_width);
  real CH_DEV *dnormed = CH_NEW(&x->scratch, real, n * d);
  ch_linear_backward(x, b.o, n, b.att, c->dadded + shard * n * d, datt, 0, g[DO], accumulate);
  queries in = {.q = b.qh, .k = b.kh};
  if (b.q_norm) in = prepare(x, m, &b, p); /* recomputed: cheaper than storing it */
  ch_attention_args attention = attention_args(m, &b, p, shard, &in);
  attention.dout = datt;
  attention.dq = dq;
  attention.dk = dk;
  attention.dv = dv;
  attention.drel_bias = g[c->place[DREL_BIAS]];
  x->ops->attention_backward(x, &attention);
  dq = prepare_backward(x, m, p, m->config.heads, &in.q_norm, dq, g[c->place[DQ_NORM]]);
  dk = prepare_backward(x, m, p, m->kv_heads, &in.k_norm, dk, g[c->place[DK_NORM]]);
  const ch_rmsnorm_args norm = ch_norm(x, m, b.attn_norm, n, b.x, b.rstd1); /* recomputed, too */
  ch_linear_backward(x, b.v, n, norm.y, dv, dnormed, 0, g[DV], accumulate);
  ch_linear_backward(x, b.k, n, norm.y, dk, dnormed, 1, g[DK], accumulate);
  ch_linear_backward(x, b.q, n, norm.y, dq, dnormed, 1, g[DQ], accumulate);
  ch_norm_backward(x, &norm, dnormed, c->dx + shard * n * d, g[DNORM]);
}

/* dx [B,T,d]: in, the gradient of out; out, the gradient of in. */
void ch_attention_backward(ch_exec *x, const ch_transformer *m, ch_layer *b, const ch_pass *p, real CH_DEV *dx) {
  ch_prefetch_next(x);
  CH_SCRATCH(x);
  const real CH_DEV *dadded = ch_half_backward(x, m, p, 2 * b->number + CH_DROP_ATTENTION, dx);
  attention_pass c = {.m = m, .b = b, .pass = ch_grad_chunk_of_pass(p), .dadded = dadded, .dx = dx};
  const ch_param *const w[GRADIENTS] = {b->o, b->v, b->k, b->q, b->attn_norm, b->rel_bias, b->q_norm, b->k_norm};
  ch_sum sum[GRADIENTS];
  int count = 0;
  for (int i = 0; i < GRADIENTS; i++) {
    c.place[i] = w[i] ? count : 0;
    if (w[i]) sum[count++] = ch_sum_of(w[i]);
  }
  ch_sum_grad_chunks(x, ch_pass_grad_chunks(p), sum, count, p->accumulate, chunk_backward, &c);
}
