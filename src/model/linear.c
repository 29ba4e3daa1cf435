/* A bias-free linear map by a parameter W [out,in]. */
#include "model/transformer.h"

void ch_linear(ch_exec *x, const ch_param *w, int64_t n, const real *in, real *out, int accumulate) {
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

void ch_linear_backward(ch_exec *x, const ch_param *w, int64_t n, const real *in, const real *dout, real *din,
                        int accumulate) {
  x->ops->gemm(x, &(ch_gemm_args){.m = n,
                                  .n = w->shape[1],
                                  .k = w->shape[0],
                                  .a = dout,
                                  .b = w->w,
                                  .b16 = w->w16,
                                  .c = din,
                                  .accumulate = accumulate});
  x->ops->gemm(
      x, &(ch_gemm_args){
             .m = w->shape[0], .n = w->shape[1], .k = n, .trans_a = 1, .a = dout, .b = in, .c = w->g, .accumulate = 1});
}
