/* Building blocks of both halves of a layer: a bias-free linear map with a parameter W [out,in], the norm before it,
 * and the dropout after it. */
#include "model/block.h"
#include "op/prefetch.h"

/* out [n,outputs] (= or +=) in [n,inputs] W^T, W [outputs,inputs]. */
static ch_gemm_args product(const ch_param *w, int64_t n, const real CH_DEV *in, real CH_DEV *out, int accumulate) {
  return (ch_gemm_args){.m = n,
                        .n = w->shape[0],
                        .k = w->shape[1],
                        .trans_b = 1,
                        .a = in,
                        .b = w->w,
                        .b16 = w->w16,
                        .b8 = w->w8,
                        .c = out,
                        .accumulate = accumulate};
}

void ch_linear(ch_exec *x, const ch_param *w, int64_t n, const real CH_DEV *in, real CH_DEV *out, int accumulate) {
  ch_gemm_args g = product(w, n, in, out, accumulate);
  x->ops->gemm(x, &g);
  ch_prefetch_move(x);
}

void ch_linears(ch_exec *x, int count, const ch_param *const *w, int64_t n, const real CH_DEV *in,
                real CH_DEV *const *out) {
  ch_gemm_args g[CH_LINEARS];
  for (int i = 0; i < count; i++) {
    g[i] = product(w[i], n, in, out[i], 0);
    g[i].second = i + 1 < count ? &g[i + 1] : NULL;
  }
  x->ops->gemm(x, g);
  ch_prefetch_move(x);
}

/* din [n,inputs] (= or +=) dout [n,outputs] W; dw [outputs,inputs] (= or +=) dout^T in.
 * The weight's gradient runs first: it splits into fewer tasks, so idle threads start on the input's gradient. */
void ch_linear_backward(ch_exec *x, const ch_param *w, int64_t n, const real CH_DEV *in, const real CH_DEV *dout,
                        real CH_DEV *din, int accumulate, real CH_DEV *dw, int accumulate_dw) {
  ch_gemm_args to_input = {.m = n,
                           .n = w->shape[1],
                           .k = w->shape[0],
                           .a = dout,
                           .b = w->w,
                           .b16 = w->w16,
                           .c = din,
                           .accumulate = accumulate};
  ch_gemm_args to_weight = {.m = w->shape[0],
                            .n = w->shape[1],
                            .k = n,
                            .trans_a = 1,
                            .a = dout,
                            .b = in,
                            .c = dw,
                            .accumulate = accumulate_dw,
                            .second = din ? &to_input : NULL};
  x->ops->gemm(x, dw ? &to_weight : &to_input);
  ch_prefetch_move(x);
}

ch_rmsnorm_args ch_norm(ch_exec *x, const ch_transformer *m, const ch_param *w, int64_t n, const real CH_DEV *in,
                        real CH_DEV *rstd) {
  const int d = m->config.d_model;
  ch_rmsnorm_args norm = {.n = n, .d = d, .eps = (real)m->config.norm_eps, .x = in, .w = w->w};
  norm.y = CH_NEW(&x->scratch, real, n * d);
  norm.rstd = rstd ? rstd : CH_NEW(&x->scratch, real, n);
  x->ops->rmsnorm(x, &norm);
  return norm;
}

void ch_norm_backward(ch_exec *x, const ch_rmsnorm_args *forward, const real CH_DEV *dnormed, real CH_DEV *dx,
                      real CH_DEV *dw) {
  ch_rmsnorm_args norm = *forward;
  norm.dy = dnormed;
  norm.dx = dx;
  norm.dx_acc = 1; /* it holds the residual's gradient */
  norm.dw = dw;
  x->ops->rmsnorm_backward(x, &norm);
}

int ch_drops(const ch_pass *p) { return p->route.training && p->dropout > 0; }

void ch_dropout(ch_exec *x, const ch_transformer *m, const ch_pass *p, int place, const real CH_DEV *in,
                real CH_DEV *out, int accumulate) {
  int64_t count = (int64_t)p->B * p->T * m->config.d_model;
  CH_OP(x, dropout, .count = count, .first = ch_local_offset(x->comm, count), .rate = p->dropout, .seed = p->seed,
        .place = (uint32_t)place, .draw = p->micro, .x = in, .y = out, .accumulate = accumulate);
}

real CH_DEV *ch_half_begin(ch_exec *x, const ch_transformer *m, const ch_pass *p, const real CH_DEV *in,
                           real CH_DEV *out) {
  int64_t count = (int64_t)p->B * p->T * m->config.d_model;
  real CH_DEV *added = ch_drops(p) ? CH_NEW(&x->scratch, real, count) : out;
  if (in != out) CH_OP(x, copy, .count = count, .x = in, .y = out);
  if (added != out) CH_OP(x, copy, .count = count, .y = added);
  return added;
}

void ch_half_end(ch_exec *x, const ch_transformer *m, const ch_pass *p, int place, const real CH_DEV *added,
                 real CH_DEV *out) {
  if (added != out) ch_dropout(x, m, p, place, added, out, 1);
}

const real CH_DEV *ch_half_backward(ch_exec *x, const ch_transformer *m, const ch_pass *p, int place,
                                    const real CH_DEV *dout) {
  if (!ch_drops(p)) return dout;
  real CH_DEV *dadded = CH_NEW(&x->scratch, real, (int64_t)p->B * p->T * m->config.d_model);
  ch_dropout(x, m, p, place, dout, dadded, 0);
  return dadded;
}

int ch_pass_grad_chunks(const ch_pass *p) { return p->grad_chunks > 1 ? p->grad_chunks : 1; }

ch_pass ch_grad_chunk_of_pass(const ch_pass *p) {
  ch_pass shard = *p;
  shard.B = p->B / ch_pass_grad_chunks(p);
  return shard;
}

ch_layer ch_grad_chunk_of_layer(const ch_transformer *m, const ch_layer *b, const ch_pass *shard, int number) {
  int64_t row = (int64_t)number * shard->B * shard->T, d = m->config.d_model, width = m->width, kv_width = m->kv_width;
  ch_layer s = *b;
  s.x += row * d;
  s.rstd1 += row;
  s.qh += row * width;
  s.kh += row * kv_width;
  s.vh += row * kv_width;
  s.att += row * width;
  s.lse += row * m->config.heads;
  return s;
}

ch_sum ch_sum_of(const ch_param *w) {
  return (ch_sum){.y = w->g, .count = w->count, .adds = !w->product, .sharded = w->owner >= 0, .owner = w->owner};
}
