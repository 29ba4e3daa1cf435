#include "moe/expert_ffn.h"

/* One product with all experts: rows of the record, k and n as ch_expert_gemm_args has them. */
static ch_expert_gemm_args product(const ch_record *r, ch_gemm_form form, int64_t k, int64_t n) {
  return (ch_expert_gemm_args){
      .form = form, .experts = r->experts, .begin = r->expert_begin, .max_rows = r->max_slots, .k = k, .n = n};
}

/* C = A W (CH_NN, [d] -> [h]) or C = A W^T (CH_NT, [h] -> [d]). */
static void apply(ch_exec *x, const ch_moe_args *a, const ch_record *r, ch_gemm_form form, const real *in,
                  const real *w, const ch_bf16 *w16, real *out) {
  ch_expert_gemm_args p = product(r, form, form == CH_NN ? a->d : a->h, form == CH_NN ? a->h : a->d);
  p.a = in;
  p.c = out;
  p.w = (real *)w; /* an input here: only CH_TN writes it */
  p.w16 = w16;
  x->ops->expert_gemm(x, &p);
}

/* dW[i] (=|+=) A^T C with A [slots,d] and C [slots,h]. */
static void weight_gradient(ch_exec *x, const ch_moe_args *a, const ch_record *r, const real *rows_d,
                            const real *rows_h, real *dw) {
  ch_expert_gemm_args p = product(r, CH_TN, a->d, a->h);
  p.a = rows_d;
  p.c = (real *)rows_h;
  p.w = dw;
  p.accumulate = a->accumulate;
  x->ops->expert_gemm(x, &p);
}

void ch_expert_ffn_forward(ch_exec *x, const ch_moe_args *a, const ch_record *r, real *pre, real *y) {
  const ch_moe_weights *w = &a->weights;
  size_t mark = ch_arena_mark(&x->scratch);
  real *x_in = CH_NEW(&x->scratch, real, (int64_t)r->max_slots * a->d);
  x->ops->gather(x, &(ch_gather_args){.record = r, .d = a->d, .x = a->x, .y = x_in});
  apply(x, a, r, CH_NN, x_in, w->w1, w->w1_16, pre);
  ch_arena_release(&x->scratch, mark); /* x_in is done with: hidden takes its place */

  real *hidden = CH_NEW(&x->scratch, real, (int64_t)r->max_slots * a->h);
  x->ops->gelu(x, &(ch_gelu_args){.count = (int64_t)r->slots * a->h, .x = pre, .y = hidden});
  apply(x, a, r, CH_NT, hidden, w->w2, w->w2_16, y);
  ch_arena_release(&x->scratch, mark);
}

void ch_expert_ffn_backward(ch_exec *x, const ch_moe_args *a, const ch_record *r, real *pre, real *dy) {
  const ch_moe_weights *w = &a->weights;
  int64_t count = (int64_t)r->slots * a->h;
  size_t mark = ch_arena_mark(&x->scratch);
  real *hidden = CH_NEW(&x->scratch, real, (int64_t)r->max_slots * a->h);

  /* y = hidden W2^T, with hidden = gelu(pre) computed again */
  x->ops->gelu(x, &(ch_gelu_args){.count = count, .x = pre, .y = hidden});
  weight_gradient(x, a, r, dy, hidden, a->gradients.w2);
  real *dhidden = hidden; /* hidden is done with */
  apply(x, a, r, CH_NN, dy, w->w2, w->w2_16, dhidden);

  /* hidden = gelu(pre) */
  real *dpre = dhidden;
  x->ops->gelu_backward(x, &(ch_gelu_args){.count = count, .x = pre, .dy = dhidden, .dx = dpre});

  /* pre = x_in W1, with x_in = x gathered again */
  real *x_in = dy; /* dy is done with */
  x->ops->gather(x, &(ch_gather_args){.record = r, .d = a->d, .x = a->x, .y = x_in});
  weight_gradient(x, a, r, x_in, dpre, a->gradients.w1);
  real *dx_in = x_in; /* x_in is done with */
  apply(x, a, r, CH_NT, dpre, w->w1, w->w1_16, dx_in);

  /* x_in = gather(x): its transpose is combine without gates */
  x->ops->combine(x, &(ch_combine_args){.record = r, .d = a->d, .y = dx_in, .out = a->dx});
  ch_arena_release(&x->scratch, mark);
}
