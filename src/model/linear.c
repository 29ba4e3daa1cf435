/* The pieces that both halves of a layer are made of: a bias-free linear map by a parameter W [out,in], and the norm in
 * front of it. */
#include "model/transformer.h"

void ch_linear(ch_exec *x, const ch_param *w, int64_t n, const real CH_DEV *in, real CH_DEV *out, int accumulate) {
  x->ops->gemm(x, &(ch_gemm_args){.m = n,
                                  .n = w->shape[0],
                                  .k = w->shape[1],
                                  .trans_b = 1,
                                  .a = in,
                                  .b = w->w,
                                  .b16 = w->w16,
                                  .c = out,
                                  .accumulate = accumulate});
}

void ch_linear_backward(ch_exec *x, const ch_pass *p, const ch_param *w, const real CH_DEV *in, const real CH_DEV *dout,
                        real CH_DEV *din, int accumulate) {
  int64_t n = (int64_t)p->B * p->T;
  x->ops->gemm(x, &(ch_gemm_args){.m = n,
                                  .n = w->shape[1],
                                  .k = w->shape[0],
                                  .a = dout,
                                  .b = w->w,
                                  .b16 = w->w16,
                                  .c = din,
                                  .accumulate = accumulate});
  x->ops->gemm(x, &(ch_gemm_args){.m = w->shape[0],
                                  .n = w->shape[1],
                                  .k = n,
                                  .trans_a = 1,
                                  .a = dout,
                                  .b = in,
                                  .c = w->g,
                                  .accumulate = p->accumulate});
}

ch_rmsnorm_args ch_norm_args(const ch_transformer *m, const ch_param *w, int64_t n, const real CH_DEV *in,
                             real CH_DEV *rstd, real CH_DEV *normed) {
  return (ch_rmsnorm_args){
      .n = n, .d = m->config.d_model, .eps = (real)m->config.norm_eps, .x = in, .w = w->w, .y = normed, .rstd = rstd};
}

void ch_norm_backward(ch_exec *x, const ch_rmsnorm_args *forward, const ch_param *w, const real CH_DEV *dnormed,
                      real CH_DEV *dx) {
  ch_rmsnorm_args norm = *forward;
  norm.dy = dnormed;
  norm.dx = dx;
  norm.dx_acc = 1; /* the residual's own gradient stands there */
  norm.dw = w->g;
  x->ops->rmsnorm_backward(x, &norm);
}
