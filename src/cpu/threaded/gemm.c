/* gemm and expert_gemm on one-thread products; inputs are rounded to bf16 first if the compute type is bf16. */
#include "cpu/batch_invariant.h"
#include "cpu/threaded/product.h"
#include "cpu/threaded/q8.h"
#include "cpu/threaded/threaded.h"

/* Whether two products have the same left operand, which is then rounded once. */
static int shares_left(const ch_gemm_args *g, const ch_gemm_args *other) {
  int64_t rows = g->trans_a ? g->k : g->m, width = g->trans_a ? g->m : g->k;
  return other && other->a == g->a && !other->exact && rows == (other->trans_a ? other->k : other->m) &&
         width == (other->trans_a ? other->m : other->k) && ch_stride(g->lda, width) == ch_stride(other->lda, width);
}

/* The product with inputs rounded if needed. `before`: an earlier product of the same call, with the left operand
 * `left`. */
static ch_product rounded_product(ch_exec *x, const ch_gemm_args *g, const ch_gemm_args *before, const void *left) {
  ch_product p = ch_product_of(g);
  if (x->compute != CH_COMPUTE_BF16 || g->exact) return p;
  if (shares_left(g, before))
    p.a = left;
  else
    p.a = ch_rounded_operand(x, g->a, NULL, g->trans_a ? ch_span(g->k, g->m, p.lda) : ch_span(g->m, g->k, p.lda));
  p.b = ch_rounded_operand(x, g->b, g->b16, g->trans_b ? ch_span(g->n, g->k, p.ldb) : ch_span(g->k, g->n, p.ldb));
  p.bf16 = 1;
  return p;
}

static void gemm(ch_exec *x, const ch_gemm_args *g) {
  if (g->b8) {
    ch_q8_gemm(x, g);
    return;
  }
  int count = 0, made = 0;
  for (const ch_gemm_args *one = g; one; one = one->second) count++;
  CH_SCRATCH(x);
  ch_product *p = CH_NEW_HOST(&x->scratch, ch_product, count);
  const ch_gemm_args *before = NULL;
  const void *left = NULL;
  for (; g; g = g->second) {
    if (x->batch_invariant && !g->trans_a) {
      ch_invariant_gemm(x, g);
      continue;
    }
    ch_product one = rounded_product(x, g, before, left);
    if (!ch_counting(x)) p[made] = one;
    made++;
    before = g;
    left = one.a;
  }
  if (made) ch_products_run(x, made, ch_cut_alone, p);
}

/* The inputs of an expert_gemm, rounded if needed. W may instead be rounded per task. */
typedef struct {
  const void *a, *b; /* b: W, or C in CH_TN */
  int bf16, rounds;
} operands;

static operands prepare_operands(ch_exec *x, const ch_expert_gemm_args *g) {
  operands in = {g->a, g->form == CH_TN ? g->c : g->w, x->compute == CH_COMPUTE_BF16, 0};
  if (x->compute != CH_COMPUTE_BF16) return in;
  int64_t rows = ch_expert_rows(x, g);
  in.a = ch_rounded_operand(x, g->a, g->a16, rows * g->k);
  if (g->form == CH_TN)
    in.b = ch_rounded_operand(x, g->c, g->c16, rows * g->n);
  else if (g->w16)
    in.b = g->w16;
  else
    in.rounds = 1;
  return in;
}

static ch_product with_operands(const ch_expert_gemm_args *g, const operands *in, int i) {
  const int64_t first = g->begin[i], size = in->bf16 ? sizeof(ch_bf16) : sizeof(float);
  ch_product p = ch_expert_product(g, i);
  p.bf16 = in->bf16;
  p.rounds = in->rounds;
  p.a = (const char *)in->a + first * g->k * size;
  p.b = (const char *)in->b +
        (g->form == CH_TN ? first * g->n * size : i * g->n * g->k * (in->rounds ? (int64_t)sizeof(float) : size));
  return p;
}

/* With an activation, a task's output and its rounded columns of W must stay in a core's cache. */
static ch_tiling cutting_of(const ch_expert_gemm_args *g, const operands *in) {
  enum { OUTPUT = 1 << 18, ROUNDED = 1 << 19, COLUMNS = 64 };
  ch_tiling cut = ch_cut_expert;
  if (g->activate) cut.output = OUTPUT;
  if (g->activate && !g->c) cut.output_size = OUTPUT;
  if (in->rounds) cut.rounded = g->k * COLUMNS > ROUNDED ? g->k * COLUMNS : ROUNDED;
  return cut;
}

static void expert_gemm(ch_exec *x, const ch_expert_gemm_args *g) {
  if (g->w8) {
    ch_q8_expert_gemm(x, g);
    return;
  }
  if (x->batch_invariant && g->form != CH_TN) {
    ch_invariant_expert_gemm(x, g);
    return;
  }
  CH_SCRATCH(x);
  ch_product *products = CH_NEW(&x->scratch, ch_product, g->experts);
  operands in = prepare_operands(x, g);
  for (int i = 0; i < g->experts && !ch_counting(x); i++) {
    products[i] = with_operands(g, &in, i); /* no rows: m = 0 or, in CH_TN, k = 0, which sets dW to 0 */
    if (g->accumulate && g->begin[i] == g->begin[i + 1]) products[i].m = 0; /* ... or keeps dW, with accumulate */
  }
  ch_products_run(x, g->experts, cutting_of(g, &in), products);
}

void ch_threaded_fill_gemm(ch_ops *ops, ch_compute compute) {
  if (compute == CH_COMPUTE_BF16) ch_product_prepare();
  ops->gemm = gemm;
  ops->expert_gemm = expert_gemm;
}
