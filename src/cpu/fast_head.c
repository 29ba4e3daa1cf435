/* The tied head in chunks of rows: logits by a product, exponentials in place, and both gradients by products while the
 * chunk is at hand. The softmax's division is never done over the vocabulary: with e the exponentials and s = weight *
 * scale / sum of each row, dx = s (e W) scales rows of dx, and dw = e^T (s x) rows of x. */
#include <string.h>

#include "cpu/fast.h"
#include "cpu/product.h"
#include "cpu/rows.h"

enum {
  ROWS = 1024,       /* of a chunk: enough for one pass over dw to cost little */
  ROWS_NARROW = 512, /* where the model is narrow, and a pass over dw cheaper */
  NARROW = 256,
  MOST_LOGITS = 1 << 25, /* in a chunk, whatever the vocabulary */
  MOST_PARTS = 8,        /* the sum over the vocabulary in dx, in parts that run in parallel */
  SHORTEST_PART = 1024
};

typedef struct {
  int64_t rows, parts; /* of a full chunk; of the vocabulary */
  int64_t ld;          /* of the logits */
  float *logits;       /* [rows,ld] */
  float *scaled;       /* [rows,d] x times factor */
  float *partial;      /* [parts,rows,d] of dx */
  float *factor;       /* [rows] */
  double *loss;        /* [rows] */
  const void *w;       /* the weights as products take them */
  int bf16;
} plan;

static int64_t chunk_rows(const ch_head_args *a) {
  int64_t rows = a->d < NARROW ? ROWS_NARROW : ROWS, most = MOST_LOGITS / (a->V > 0 ? a->V : 1);
  if (rows > most) rows = most > 16 ? most : 16;
  return rows < a->n ? rows : a->n;
}

/* A vocabulary is often a power of two, and rows of it fall on each other in every cache: 40 % of dw's speed. */
static int64_t logits_stride(int64_t V) {
  enum { LINE = 16, CONFLICT = 256 };
  int64_t ld = (V + LINE - 1) / LINE * LINE;
  return ld % CONFLICT ? ld : ld + LINE;
}

static plan make_plan(ch_exec *x, const ch_head_args *a) {
  plan p = {.rows = chunk_rows(a), .ld = logits_stride(a->V), .w = a->w};
  p.parts = a->V / SHORTEST_PART < 1 ? 1 : a->V / SHORTEST_PART > MOST_PARTS ? MOST_PARTS : a->V / SHORTEST_PART;
  p.logits = CH_NEW(&x->scratch, float, p.rows *p.ld);
  p.factor = CH_NEW(&x->scratch, float, p.rows);
  p.loss = CH_NEW(&x->scratch, double, p.rows);
  if (a->dx) {
    p.scaled = CH_NEW(&x->scratch, float, p.rows * a->d);
    p.partial = CH_NEW(&x->scratch, float, p.parts *p.rows * a->d);
  }
  if (x->compute == CH_COMPUTE_BF16) p.w = ch_rounded_operand(x, a->w, a->w16, (int64_t)a->V * a->d);
  p.bf16 = ch_rounded_is_bf16(x);
  return p;
}

/* An operand that is not the weights, rounded if the compute type asks for it. */
static const void *operand(ch_exec *x, const float *array, int64_t count) {
  return x->compute == CH_COMPUTE_BF16 ? ch_rounded_operand(x, array, NULL, count) : array;
}

static void logits_product(ch_exec *x, const ch_head_args *a, const plan *p, int64_t first, int64_t rows) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_product forward = {.trans_b = 1,
                        .bf16 = p->bf16,
                        .m = rows,
                        .n = a->V,
                        .k = a->d,
                        .lda = a->d,
                        .ldb = a->d,
                        .ldc = p->ld,
                        .a = operand(x, a->x + first * a->d, rows * a->d),
                        .b = p->w,
                        .c = p->logits,
                        .alpha = a->scale};
  ch_products_run(x, 1, &forward);
  ch_arena_release(&x->scratch, mark);
}

/* Row i of the chunk: its loss, exponentials less the target's share, and the factor that makes them a gradient. */
static void row_loss(const ch_head_args *a, const plan *p, int64_t first, int64_t i,
                     double (*cross_entropy)(int, int, float *, double *)) {
  float *logits = p->logits + i * p->ld;
  int32_t target = a->target[first + i];
  if (a->logits) memcpy(a->logits + (first + i) * a->V, logits, (size_t)a->V * sizeof *logits);
  p->loss[i] = 0;
  p->factor[i] = 0;
  if (target >= 0) {
    double sum;
    p->loss[i] = cross_entropy(a->V, target, logits, &sum);
    p->factor[i] = (float)((double)a->weight * (double)a->scale / sum);
    logits[target] -= (float)sum;
  } else {
    memset(logits, 0, (size_t)a->V * sizeof *logits);
  }
  for (int c = 0; a->dx && c < a->d; c++) p->scaled[i * a->d + c] = p->factor[i] * a->x[(first + i) * a->d + c];
}

/* dx of the chunk: the parts of the vocabulary as products of their own, then their sum, in order, times factor. */
static void input_gradient(ch_exec *x, const ch_head_args *a, const plan *p, int64_t first, int64_t rows,
                           const void *e) {
  ch_product part[MOST_PARTS];
  int64_t columns = (a->V + p->parts - 1) / p->parts, size = rows * a->d;
  int64_t element = p->bf16 ? sizeof(ch_bf16) : sizeof(float);
  for (int64_t i = 0; i < p->parts; i++) {
    int64_t begin = i * columns < a->V ? i * columns : a->V, end = begin + columns < a->V ? begin + columns : a->V;
    part[i] = (ch_product){.bf16 = p->bf16,
                           .m = rows,
                           .n = a->d,
                           .k = end - begin,
                           .lda = p->ld,
                           .ldb = a->d,
                           .ldc = a->d,
                           .a = (const char *)e + begin * element,
                           .b = (const char *)p->w + begin * a->d * element,
                           .c = p->partial + i * size,
                           .alpha = 1};
  }
  ch_products_run(x, (int)p->parts, part);
  if (ch_counting(x)) return;
#pragma omp parallel for num_threads(x->threads)
  for (int64_t r = 0; r < rows; r++)
    for (int c = 0; c < a->d; c++) {
      float sum = 0;
      for (int64_t i = 0; i < p->parts; i++) sum += p->partial[i * size + r * a->d + c];
      a->dx[(first + r) * a->d + c] = p->factor[r] * sum;
    }
}

static void gradients(ch_exec *x, const ch_head_args *a, const plan *p, int64_t first, int64_t rows) {
  size_t mark = ch_arena_mark(&x->scratch);
  const void *e = operand(x, p->logits, rows * p->ld);
  input_gradient(x, a, p, first, rows, e);
  ch_product dw = {.trans_a = 1,
                   .accumulate = 1,
                   .bf16 = p->bf16,
                   .m = a->V,
                   .n = a->d,
                   .k = rows,
                   .lda = p->ld,
                   .ldb = a->d,
                   .ldc = a->d,
                   .a = e,
                   .b = operand(x, p->scaled, rows * a->d),
                   .c = a->dw,
                   .alpha = 1};
  ch_products_run(x, 1, &dw);
  ch_arena_release(&x->scratch, mark);
}

static void head_chunk(ch_exec *x, const ch_head_args *a, const plan *p, int64_t first, int64_t rows) {
  logits_product(x, a, p, first, rows);
  if (!ch_counting(x)) {
    double (*cross_entropy)(int, int, float *, double *) = CH_SIMD_PICK(ch_cross_entropy);
#pragma omp parallel for schedule(dynamic, 4) num_threads(x->threads)
    for (int64_t i = 0; i < rows; i++) row_loss(a, p, first, i, cross_entropy);
    for (int64_t i = 0; i < rows; i++) {
      *a->loss_sum += p->loss[i];
      if (a->token_loss) a->token_loss[first + i] = (float)p->loss[i];
    }
  }
  if (a->dx) gradients(x, a, p, first, rows);
}

static void head(ch_exec *x, const ch_head_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  plan p = make_plan(x, a);
  if (ch_counting(x)) {
    head_chunk(x, a, &p, 0, p.rows);
  } else {
    *a->loss_sum = 0;
    for (int64_t first = 0; first < a->n; first += p.rows)
      head_chunk(x, a, &p, first, a->n - first < p.rows ? a->n - first : p.rows);
  }
  ch_arena_release(&x->scratch, mark);
}

void ch_fast_fill_head(ch_ops *ops) { ops->head = head; }
