/* Products by row on all threads: pieces of columns, since rows are few and B is what is read. */
#include "cpu/batch_invariant.h"

/* A as products see it: rounded, but held as floats. */
static const float *rounded_rows(ch_exec *x, const float *a, const ch_bf16 *a16, int64_t count, int exact) {
  if (x->compute != CH_COMPUTE_BF16 || exact) return a;
  float *rounded = CH_NEW(&x->scratch, float, count);
  if (ch_counting(x)) return rounded;
  for (int64_t i = 0; i < count; i++) rounded[i] = ch_bf16_value(a16 ? a16[i] : ch_bf16_round(a[i]));
  return rounded;
}

/* B as it goes into products: rounded, now if it was not before. */
static const void *rounded_weights(ch_exec *x, const float *b, const ch_bf16 *b16, int64_t count) {
  if (b16) return b16;
  ch_bf16 *rounded = CH_NEW(&x->scratch, ch_bf16, count);
  x->ops->round_bf16(x, &(ch_round_args){.count = count, .x = b, .y = rounded});
  return rounded;
}

/* Columns of a piece: where rows are few enough work, but no more than threads wait for without falling asleep, since
 * waking one takes as long as a piece. Where B is transposed any number of columns will do. */
static int64_t piece_columns(const ch_product *p) {
  enum { FEW_ROWS = 4, FEW_COLUMNS = 8 };
  int64_t columns = p->trans_b ? CH_INVARIANT_COLUMNS : 2 * CH_INVARIANT_COLUMNS;
  while (columns * p->m * p->k < CH_INVARIANT_WORK && columns < p->n) columns *= 2;
  if (p->trans_b && p->m <= FEW_ROWS)
    while (columns * p->k > 2 * CH_INVARIANT_WORK && columns > FEW_COLUMNS) columns /= 2;
  return columns;
}

static ch_product piece_of(const ch_product *p, int64_t begin, int64_t columns) {
  ch_product piece = *p;
  piece.n = p->n - begin < columns ? p->n - begin : columns;
  int64_t skip = p->trans_b ? begin * p->ldb : begin;
  piece.b = (const char *)p->b + skip * (int64_t)(p->bf16 ? sizeof(ch_bf16) : sizeof(float));
  piece.c = p->c + begin;
  return piece;
}

void ch_invariant_gemm(ch_exec *x, const ch_gemm_args *g) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_product p = {.trans_b = g->trans_b,
                  .accumulate = g->accumulate,
                  .bf16 = x->compute == CH_COMPUTE_BF16 && !g->exact,
                  .m = g->m,
                  .n = g->n,
                  .k = g->k,
                  .lda = g->lda ? g->lda : g->k,
                  .ldb = g->ldb       ? g->ldb
                         : g->trans_b ? g->k
                                      : g->n,
                  .ldc = g->ldc ? g->ldc : g->n,
                  .c = g->c,
                  .alpha = g->alpha ? g->alpha : 1};
  p.a = rounded_rows(x, g->a, NULL, g->m > 0 ? (g->m - 1) * p.lda + g->k : 0, g->exact);
  int64_t size = g->trans_b ? (g->n - 1) * p.ldb + g->k : (g->k - 1) * p.ldb + g->n;
  p.b = p.bf16 ? rounded_weights(x, g->b, g->b16, size) : g->b;
  if (!ch_counting(x)) {
    void (*run)(const ch_product *) = CH_SIMD_PICK(ch_invariant_product);
    int64_t columns = piece_columns(&p);
#pragma omp parallel for schedule(dynamic, 1) num_threads(ch_invariant_threads(x, p.m *p.n *p.k))
    for (int64_t begin = 0; begin < p.n; begin += columns) {
      ch_product piece = piece_of(&p, begin, columns);
      run(&piece);
    }
  }
  ch_arena_release(&x->scratch, mark);
}

/* Expert i's product; rows are few for most experts, none for many. */
static ch_product expert_product(const ch_expert_gemm_args *g, const float *a, const void *w, int bf16, int i) {
  int64_t first = g->begin[i], weight = i * g->n * g->k;
  ch_product p = {.trans_b = g->form == CH_NT,
                  .bf16 = bf16,
                  .m = g->begin[i + 1] - first,
                  .n = g->n,
                  .k = g->k,
                  .a = a + first * g->k,
                  .lda = g->k,
                  .ldb = g->form == CH_NT ? g->k : g->n,
                  .c = g->c + first * g->n,
                  .ldc = g->n,
                  .alpha = 1};
  p.b = (const char *)w + weight * (int64_t)(bf16 ? sizeof(ch_bf16) : sizeof(float));
  return p;
}

void ch_invariant_expert_gemm(ch_exec *x, const ch_expert_gemm_args *g) {
  size_t mark = ch_arena_mark(&x->scratch);
  int *busy = CH_NEW(&x->scratch, int, g->experts), count = 0;
  int bf16 = x->compute == CH_COMPUTE_BF16;
  int64_t rows = ch_counting(x) ? g->max_rows : g->begin[g->experts];
  const float *a = rounded_rows(x, g->a, g->a16, rows * g->k, 0);
  const void *w = bf16 ? rounded_weights(x, g->w, g->w16, g->experts * g->n * g->k) : g->w;
  if (!ch_counting(x)) {
    void (*run)(const ch_product *) = CH_SIMD_PICK(ch_invariant_product);
    for (int i = 0; i < g->experts; i++)
      if (g->begin[i + 1] > g->begin[i]) busy[count++] = i;
    ch_product mean = {.trans_b = g->form == CH_NT, .m = count ? rows / count : 0, .n = g->n, .k = g->k};
    int64_t columns = piece_columns(&mean), pieces = (g->n + columns - 1) / columns;
#pragma omp parallel for schedule(dynamic, 1) num_threads(ch_invariant_threads(x, rows * g->n * g->k))
    for (int64_t task = 0; task < count * pieces; task++) {
      ch_product p = expert_product(g, a, w, bf16, busy[task / pieces]);
      ch_product piece = piece_of(&p, task % pieces * columns, columns);
      run(&piece);
    }
  }
  ch_arena_release(&x->scratch, mark);
}
