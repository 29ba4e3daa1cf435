/* Batch-invariant products on all threads, split by columns, because rows are few and reading B dominates. */
#include "cpu/batch_invariant.h"

#include "cpu/simd/fill.h"
#include "cpu/threaded/product.h"

/* Cost of one GELU, in multiplications. */
enum { GELU_WORK = 16 };

/* From MIN_TILED_ROWS rows on, multiplying takes longer than reading B, and choir's own product (product.h) is faster
 * than the kernel for few rows. Both add in the same order unless B is transposed. */
enum { MIN_TILED_ROWS = 16 };
static int suits_tiles(const ch_product *p) { return !p->trans_b && p->m >= MIN_TILED_ROWS; }

/* A in bf16 products: choir's own product reads `rounded`, as does the kernel for few rows if it multiplies pairs;
 * otherwise this kernel reads the rounded values as floats. */
typedef struct {
  const ch_bf16 *rounded;
  const float *values;
} operand;

static operand left_operand(ch_exec *x, const float *a, const ch_bf16 *a16, int64_t count, int bf16, int widens) {
  if (!bf16) return (operand){.values = a};
  operand o = {.rounded = ch_rounded_operand(x, a, a16, count)};
  float *values = widens || ch_counting(x) ? CH_NEW(&x->scratch, float, count) : NULL;
  if (widens) CH_OP(x, widen_bf16, .count = count, .x = o.rounded, .y = values);
  o.values = values;
  return o;
}

/* The operand's row `first`, in the type that p's kernel reads. */
static const void *rows_from(const operand *a, const ch_product *p, int64_t first) {
  int rounded = p->bf16 && (suits_tiles(p) || ch_product_takes_pairs(p));
  return rounded ? (const void *)(a->rounded + first * p->lda) : a->values + first * p->lda;
}

/* The few-row kernel for products of p's shape. */
typedef void (*streamed_product)(const ch_product *p);
static streamed_product streamed_product_for(const ch_product *p) {
  (void)p; /* used only with CH_SIMD_PAIRS */
#if defined(CH_SIMD_PAIRS)
  if (ch_product_takes_pairs(p)) return CH_SIMD_PAIRS(ch_invariant_pairs);
#endif
  return CH_SIMD_PICK(ch_invariant_product);
}

/* Columns per task for one row and B not transposed: wide, but at least two tasks per thread. */
static int64_t broad_columns(const ch_exec *x, const ch_product *p, int count) {
  int64_t columns = CH_INVARIANT_BROAD;
  while (columns > 2 * CH_INVARIANT_COLUMNS && count * p->n < 2 * x->threads * columns) columns /= 2;
  return columns;
}

/* Columns per task for `count` products like p. With few rows a task must be large enough to be worth a thread, but so
 * short that waiting threads do not sleep, because waking a thread takes as long as a task. If B is transposed, any
 * width is allowed. */
static int64_t piece_columns(const ch_exec *x, const ch_product *p, int count) {
  enum { MAX_STREAMED_ROWS = 4, MIN_COLUMNS = 8 };
  int64_t columns = p->trans_b ? CH_INVARIANT_COLUMNS : 2 * CH_INVARIANT_COLUMNS;
  if (!p->trans_b && p->m == 1) return broad_columns(x, p, count);
  while (columns * p->m * p->k < CH_INVARIANT_WORK && columns < p->n) columns *= 2;
  if (p->trans_b && p->m <= MAX_STREAMED_ROWS)
    while (columns * p->k > 2 * CH_INVARIANT_WORK && columns > MIN_COLUMNS) columns /= 2;
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

static void run_streamed(const ch_exec *x, const ch_product *p) {
  streamed_product run = streamed_product_for(p);
  int64_t columns = piece_columns(x, p, 1);
#pragma omp parallel for schedule(dynamic, 1) num_threads(ch_invariant_threads(x, p->m * p->n * p->k))
  for (int64_t begin = 0; begin < p->n; begin += columns) {
    ch_product piece = piece_of(p, begin, columns);
    run(&piece);
  }
}

void ch_invariant_gemm(ch_exec *x, const ch_gemm_args *g) {
  CH_SCRATCH(x);
  ch_product p = ch_product_of(g);
  p.by_row = 1;
  p.bf16 = x->compute == CH_COMPUTE_BF16 && !g->exact;
  int64_t size = g->trans_b ? ch_span(g->n, g->k, p.ldb) : ch_span(g->k, g->n, p.ldb);
  int tiled = suits_tiles(&p);
  operand a = left_operand(x, g->a, NULL, ch_span(g->m, g->k, p.lda), p.bf16, !tiled && !ch_product_takes_pairs(&p));
  p.b = p.bf16 ? (const void *)ch_rounded_operand(x, g->b, g->b16, size) : g->b;
  p.a = rows_from(&a, &p, 0);
  if (tiled) ch_products_run(x, 1, ch_cut_alone, &p);
  if (!tiled && !ch_counting(x)) run_streamed(x, &p);
}

/* Expert i's product without A and the activation. Most experts have few rows, many have none. */
static ch_product by_row_product(const ch_expert_gemm_args *g, const void *w, float *c, int bf16, int i) {
  ch_product p = ch_expert_product(g, i);
  p.by_row = 1;
  p.bf16 = bf16;
  p.b = (const char *)w + i * g->n * g->k * (int64_t)(bf16 ? sizeof(ch_bf16) : sizeof(float));
  p.c = c + g->begin[i] * g->n;
  p.activate = NULL;
  return p;
}

/* Runs the products of experts with few rows: tasks of equal width, in one loop over all. */
static void run_streamed_experts(const ch_exec *x, int count, const ch_product *streamed) {
  streamed_product run = streamed_product_for(streamed);
  ch_product mean = streamed[0];
  int64_t rows = 0;
  for (int i = 0; i < count; i++) rows += streamed[i].m;
  mean.m = rows / count;
  int64_t columns = piece_columns(x, &mean, count), pieces = (mean.n + columns - 1) / columns;
#pragma omp parallel for schedule(dynamic, 1) num_threads(ch_invariant_threads(x, rows *mean.n *mean.k))
  for (int64_t task = 0; task < count * pieces; task++) {
    ch_product piece = piece_of(&streamed[task / pieces], task % pieces * columns, columns);
    run(&piece);
  }
}

/* Applies GELU to C after the products. */
static void through_gelu(const ch_exec *x, const ch_expert_gemm_args *g, const float *c) {
  int64_t rows = g->begin[g->experts];
  ch_activate_run *run = CH_SIMD_PICK(ch_activate_elements);
#pragma omp parallel for num_threads(ch_invariant_threads(x, rows * g->n * GELU_WORK))
  for (int64_t i = 0; i < rows; i++) run(g->activate, c + i * g->n, i * g->n, g->n);
}

void ch_invariant_expert_gemm(ch_exec *x, const ch_expert_gemm_args *g) {
  CH_SCRATCH(x);
  ch_product *tiled = CH_NEW(&x->scratch, ch_product, g->experts),
             *streamed = CH_NEW(&x->scratch, ch_product, g->experts);
  int bf16 = x->compute == CH_COMPUTE_BF16, tiled_count = 0, streamed_count = 0;
  int64_t rows = ch_expert_rows(x, g);
  float *c = bf16 && g->activate && !ch_gated(g->activate->activation) ? CH_NEW(&x->scratch, float, rows * g->n) : g->c;
  const void *w = bf16 ? (const void *)ch_rounded_operand(x, g->w, g->w16, g->experts * g->n * g->k) : g->w;
  for (int i = 0; i < g->experts && !ch_counting(x); i++) {
    ch_product p = by_row_product(g, w, c, bf16, i);
    if (suits_tiles(&p))
      tiled[tiled_count++] = p;
    else if (p.m)
      streamed[streamed_count++] = p;
  }
  operand a = left_operand(x, g->a, g->a16, rows * g->k, bf16, streamed_count && !ch_product_takes_pairs(streamed));
  for (int i = 0; i < tiled_count; i++) tiled[i].a = rows_from(&a, &tiled[i], (tiled[i].c - c) / g->n);
  for (int i = 0; i < streamed_count; i++) streamed[i].a = rows_from(&a, &streamed[i], (streamed[i].c - c) / g->n);
  if (tiled_count || ch_counting(x))
    ch_products_run(x, ch_counting(x) ? g->experts : tiled_count, ch_cut_expert, tiled);
  if (streamed_count) run_streamed_experts(x, streamed_count, streamed);
  if (g->activate && !ch_counting(x)) through_gelu(x, g, c);
}
