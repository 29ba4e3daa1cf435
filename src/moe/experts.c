#include "moe/experts.h"

/* How many slots are filled: only the device knows. */
static const int CH_DEV *filled(const ch_record *r) { return r->expert_begin + r->experts; }

/* One product with all experts: rows of the record, k and n as ch_expert_gemm_args has them. */
static ch_expert_gemm_args product(const ch_record *r, ch_gemm_form form, int64_t k, int64_t n) {
  return (ch_expert_gemm_args){.form = form,
                               .experts = r->experts,
                               .begin = r->expert_begin,
                               .max_rows = r->max_slots,
                               .load = r->load,
                               .k = k,
                               .n = n};
}

/* Rows that only products read: in the type they compute in. */
typedef struct {
  real CH_DEV *value;
  ch_bf16 CH_DEV *rounded; /* then value is NULL */
} rows;

static rows new_rows(ch_exec *x, int64_t count) {
  if (x->compute == CH_COMPUTE_BF16) return (rows){.rounded = CH_NEW(&x->scratch, ch_bf16, count)};
  return (rows){.value = CH_NEW(&x->scratch, real, count)};
}

/* The same of rows of width d that are there. */
static rows as_rows(ch_exec *x, const ch_record *r, real CH_DEV *value, int64_t d) {
  if (x->compute != CH_COMPUTE_BF16) return (rows){.value = value};
  rows out = new_rows(x, r->max_slots * d);
  x->ops->round_bf16(x, &(ch_round_args){.count = d, .rows = filled(r), .x = value, .y = out.rounded});
  return out;
}

/* C = A W (CH_NN, [d] -> [h]) or C = A W^T (CH_NT, [h] -> [d]). */
static void apply(ch_exec *x, const ch_moe_args *a, const ch_record *r, ch_gemm_form form, rows in,
                  const real CH_DEV *w, const ch_bf16 CH_DEV *w16, real CH_DEV *out) {
  ch_expert_gemm_args p = product(r, form, form == CH_NN ? a->d : a->h, form == CH_NN ? a->h : a->d);
  p.a = in.value;
  p.a16 = in.rounded;
  p.c = out;
  p.w = (real CH_DEV *)w; /* an input here: only CH_TN writes it */
  p.w16 = w16;
  x->ops->expert_gemm(x, &p);
}

/* dW[i] (+)= A^T C with A [slots,d] and C [slots,h]. */
static void accumulate(ch_exec *x, const ch_moe_args *a, const ch_record *r, rows rows_d, rows rows_h,
                       real CH_DEV *dw) {
  ch_expert_gemm_args p = product(r, CH_TN, a->d, a->h);
  p.a = rows_d.value;
  p.a16 = rows_d.rounded;
  p.c = rows_h.value;
  p.c16 = rows_h.rounded;
  p.w = dw;
  p.accumulate = a->accumulate;
  x->ops->expert_gemm(x, &p);
}

static void gelu(ch_exec *x, const ch_moe_args *a, const ch_record *r, const real CH_DEV *pre, rows y) {
  x->ops->gelu(x, &(ch_gelu_args){.count = a->h, .rows = filled(r), .x = pre, .y = y.value, .y16 = y.rounded});
}

void ch_experts_forward(ch_exec *x, const ch_moe_args *a, const ch_exchange *ex, real CH_DEV *pre, real CH_DEV *y) {
  const ch_record *r = &ex->owned;
  const ch_moe_weights *w = &a->weights;
  size_t mark = ch_arena_mark(&x->scratch);
  apply(x, a, r, CH_NN, (rows){.value = y}, w->w1, w->w1_16, pre);
  ch_arena_release(&x->scratch, mark);

  rows hidden = new_rows(x, (int64_t)r->max_slots * a->h);
  gelu(x, a, r, pre, hidden);
  apply(x, a, r, CH_NT, hidden, w->w2, w->w2_16, y);
  ch_arena_release(&x->scratch, mark);
}

void ch_experts_backward(ch_exec *x, const ch_moe_args *a, const ch_exchange *ex, real CH_DEV *pre, real CH_DEV *dy) {
  const ch_record *r = &ex->owned;
  const ch_moe_weights *w = &a->weights;
  int64_t most = (int64_t)r->max_slots * a->h;
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *dhidden = CH_NEW(&x->scratch, real, most);

  /* y = hidden W2^T, with hidden = gelu(pre) computed again, where dhidden will be unless it is rounded */
  rows dy_in = as_rows(x, r, dy, a->d);
  rows hidden = x->compute == CH_COMPUTE_BF16 ? new_rows(x, most) : (rows){.value = dhidden};
  gelu(x, a, r, pre, hidden);
  accumulate(x, a, r, dy_in, hidden, a->gradients.w2);
  apply(x, a, r, CH_NN, dy_in, w->w2, w->w2_16, dhidden);

  /* hidden = gelu(pre): dpre takes the place of hidden or dhidden, which are done with */
  rows dpre = hidden;
  x->ops->gelu_backward(
      x, &(ch_gelu_args){
             .count = a->h, .rows = filled(r), .x = pre, .dy = dhidden, .dx = dpre.value, .dx16 = dpre.rounded});

  /* pre = x_in W1, with x_in = x dispatched again */
  real CH_DEV *x_in = dy; /* dy is done with */
  ch_exchange_dispatch(x, ex, a->d, a->x, x_in);
  accumulate(x, a, r, (rows){.value = x_in}, dpre, a->gradients.w1);
  real CH_DEV *dx_in = x_in; /* x_in is done with */
  apply(x, a, r, CH_NT, dpre, w->w1, w->w1_16, dx_in);
  ch_arena_release(&x->scratch, mark);
}
