/* Matrix products in plain C: the reference semantics of gemm and expert_gemm. */
#include "cpu/ref/ref.h"

static int64_t stride(int64_t ld, int64_t width) { return ld ? ld : width; }

/* sum of a[p step] b[p] over p, in 8 partial sums so that it vectorizes. */
static real dot(int64_t k, const real *a, int64_t step, const real *b) {
  real part[8] = {0};
  int64_t p = 0;
  for (; p + 8 <= k; p += 8)
    for (int l = 0; l < 8; l++) part[l] += a[(p + l) * step] * b[p + l];
  for (; p < k; p++) part[p % 8] += a[p * step] * b[p];
  return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

void ch_ref_gemm_rows(const ch_gemm_args *g, int64_t begin, int64_t end) {
  if (g->b8) {
    ch_ref_q8_rows(g, begin, end);
    return;
  }
  int64_t lda = stride(g->lda, g->trans_a ? g->m : g->k), ldb = stride(g->ldb, g->trans_b ? g->k : g->n);
  int64_t ldc = stride(g->ldc, g->n);
  int64_t row_step = g->trans_a ? 1 : lda, step = g->trans_a ? lda : 1; /* strides of op(A) */
  real alpha = g->alpha ? g->alpha : 1;
  for (int64_t i = begin; i < end; i++) {
    const real *a = g->a + i * row_step;
    real *c = g->c + i * ldc;
    if (!g->accumulate)
      for (int64_t j = 0; j < g->n; j++) c[j] = 0;
    if (g->trans_b)
      for (int64_t j = 0; j < g->n; j++) c[j] += alpha * dot(g->k, a, step, g->b + j * ldb);
    else
      for (int64_t p = 0; p < g->k; p++) {
        real ap = alpha * a[p * step];
        const real *b = g->b + p * ldb;
        for (int64_t j = 0; j < g->n; j++) c[j] += ap * b[j];
      }
  }
}

CH_REF_OP(gemm) {
  for (; a; a = a->second) {
#pragma omp parallel for num_threads(x->threads)
    for (int64_t i = 0; i < a->m; i++) ch_ref_gemm_rows(a, i, i + 1);
  }
}

/* One expert's product as a plain gemm. */
static ch_gemm_args expert_product(const ch_expert_gemm_args *a, int expert) {
  int64_t first = a->begin[expert], rows = a->begin[expert + 1] - first;
  real *w = a->w + expert * a->n * a->k, *c = a->c + first * a->n;
  const real *in = a->a + first * a->k;
  if (a->form == CH_TN)
    return (ch_gemm_args){
        .m = a->k, .n = a->n, .k = rows, .trans_a = 1, .a = in, .b = c, .c = w, .accumulate = a->accumulate};
  return (ch_gemm_args){.m = rows,
                        .n = a->n,
                        .k = a->k,
                        .trans_b = a->form == CH_NT,
                        .a = in,
                        .b = w,
                        .b8 = a->w8 ? a->w8 + expert * ch_q8_matrix_bytes(a->n, a->k) : NULL,
                        .c = c,
                        .accumulate = a->accumulate};
}

CH_REF_OP(expert_gemm) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(x->threads)
  for (int expert = 0; expert < a->experts; expert++) {
    ch_gemm_args g = expert_product(a, expert);
    ch_ref_gemm_rows(&g, 0, g.m);
  }
  if (a->activate) (a->activate->dx ? x->ops->activate_backward : x->ops->activate)(x, a->activate);
}
