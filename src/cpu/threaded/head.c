/* The tied head in chunks of rows: logits by products, exponentials in place, and both gradients by products while the
 * chunks are in memory. The softmax is never divided over the vocabulary: with the exponentials e and s = weight *
 * scale / sum of each row, dx = s (e W) scales rows of dx, and dw = e^T (s x) scales rows of x. If rows are paired, a
 * chunk holds both rows of each pair, and e is the whole gradient except for the scale. */
#include "cpu/head.h"

#include <string.h>

#include "cpu/simd/fill.h"
#include "cpu/simd/rows.h"
#include "cpu/threaded/product.h"
#include "cpu/threaded/q8.h"
#include "cpu/threaded/threaded.h"

enum {
  ROWS = 1024,       /* rows per chunk: enough to amortize a pass over dw */
  ROWS_NARROW = 128, /* for a narrow model: a pass over dw is cheap, and the chunk's logits stay in the cache */
  NARROW = 256,
  MAX_LOGITS = 1 << 25, /* max logits in memory, for any vocabulary */
  MAX_PARTS = 8,        /* max parallel parts of dx's sum over the vocabulary */
  SHORTEST_PART = 1024,
  MAX_AT_ONCE = 8 /* max small chunks that threads process in parallel */
};

typedef void round_rows(int64_t, int64_t, const float *, int64_t, ch_bf16 *);

typedef struct {
  int64_t chunk, rows; /* rows per chunk, and of all chunks in memory */
  int64_t parts;       /* parts of the vocabulary */
  int64_t ld;          /* of the logits */
  float *logits;       /* [rows,ld] */
  ch_bf16 *rounded;    /* [rows,ld] exponentials in bf16 for bf16 products; else NULL */
  round_rows *round;   /* rounds a row into `rounded` */
  float *scaled;       /* [rows,d] x times factor */
  float *partial;      /* [parts,rows,d] partial sums of dx */
  float *factor;       /* [rows] */
  double *loss;        /* [rows] */
  float *delta;        /* [rows/2,ld] difference of the logits of each pair */
  double *pair;        /* [rows/2] consistency loss of each pair */
  const void *w;       /* the weights [V,d] in the type of the products */
  float *across;       /* the weights packed for logits, or NULL */
  float *along;        /* the weights packed for dx, `part` floats per part of the vocabulary */
  int64_t part;
  int bf16;
} head_plan;

/* Rows first .. first+rows-1 of the batch, stored in the buffers from row `at` on. */
typedef struct {
  int64_t first, rows, at;
} row_span;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t chunk_rows(const ch_head_args *a) {
  int64_t rows = a->d < NARROW ? ROWS_NARROW : ROWS, max = MAX_LOGITS / (a->V > 0 ? a->V : 1);
  if (rows > max) rows = max > 16 ? max : 16;
  return rows < a->n ? rows : a->n;
}

/* Number of chunks processed in parallel; with two threads one, because it stays in the cache. The shapes of a chunk's
 * products do not depend on it, so results do not depend on the number of threads. Pairs use one chunk at a time,
 * because the gradients of both halves of a chunk are added before the next chunk's. */
static int64_t chunks_at_once(const ch_exec *x, const ch_head_args *a, int64_t chunk) {
  if (a->paired || chunk != ROWS_NARROW) return 1;
  int64_t max = smaller(smaller(MAX_AT_ONCE, (a->n + chunk - 1) / chunk), MAX_LOGITS / chunk / (a->V > 0 ? a->V : 1));
  int64_t wanted = smaller(x->threads / 2, max);
  return wanted > 1 ? wanted : 1;
}

/* Row stride of logits, never a multiple of CONFLICT floats: rows would share cache sets, which costs 40 % of dw's
 * speed. */
static int64_t logits_stride(int64_t V) {
  enum { LINE = 16, CONFLICT = 256 };
  int64_t ld = (V + LINE - 1) / LINE * LINE;
  return ld % CONFLICT ? ld : ld + LINE;
}

static int64_t whole_panels(int64_t columns) {
  return (columns + CH_PANEL_COLUMNS - 1) / CH_PANEL_COLUMNS * CH_PANEL_COLUMNS;
}

/* Element i of an operand. */
static const void *element(const head_plan *p, const void *operand, int64_t i) {
  return (const char *)operand + i * (int64_t)(p->bf16 ? sizeof(ch_bf16) : sizeof(float));
}

/* The product for logits, without the number of rows. */
static ch_product logits_of(const ch_head_args *a, const head_plan *p) {
  return (ch_product){.trans_b = 1,
                      .bf16 = p->bf16,
                      .n = a->V,
                      .k = a->d,
                      .lda = a->d,
                      .ldb = a->d,
                      .ldc = p->ld,
                      .b = p->w,
                      .panels = p->across,
                      .alpha = a->scale};
}

/* The product for dx over part i of the vocabulary. */
static ch_product part_of(const ch_head_args *a, const head_plan *p, int64_t i) {
  int64_t words = (a->V + p->parts - 1) / p->parts, begin = smaller(i * words, a->V);
  return (ch_product){.bf16 = p->bf16,
                      .n = a->d,
                      .k = smaller(words, a->V - begin),
                      .lda = p->ld,
                      .ldb = a->d,
                      .ldc = a->d,
                      .b = element(p, p->w, begin * a->d),
                      .panels = p->along ? p->along + i * p->part : NULL,
                      .alpha = 1};
}

/* Packs the weights once if chunks have few rows, each of which would pack them again. */
static void pack_weights(ch_exec *x, const ch_head_args *a, head_plan *p) {
  ch_product all = logits_of(a, p), first = part_of(a, p, 0);
  int64_t steps = ch_product_steps(&all), words = whole_panels(first.k);
  if (a->w8 || !steps || p->chunk > ROWS_NARROW || a->n <= p->chunk) return;
  p->part = whole_panels(a->d) * first.k; /* the last part may have an odd depth (no pairs) */
  p->across = CH_NEW(&x->scratch, float, whole_panels(a->V) * steps);
  if (a->dx) p->along = CH_NEW(&x->scratch, float, p->parts * p->part);
  if (ch_counting(x)) return;
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < p->parts; i++) {
    ch_product some = all, part = part_of(a, p, i);
    int64_t begin = smaller(i * words, a->V);
    some.b = element(p, p->w, begin * a->d);
    some.n = smaller(words, a->V - begin);
    ch_product_pack(&some, p->across + begin * steps);
    if (a->dx) ch_product_pack(&part, p->along + i * p->part);
  }
}

static head_plan make_plan(ch_exec *x, const ch_head_args *a) {
  head_plan p = {.chunk = chunk_rows(a), .ld = logits_stride(a->V), .w = a->w};
  p.rows = p.chunk * chunks_at_once(x, a, p.chunk);
  p.parts = a->V / SHORTEST_PART < 1 ? 1 : a->V / SHORTEST_PART > MAX_PARTS ? MAX_PARTS : a->V / SHORTEST_PART;
  p.logits = CH_NEW(&x->scratch, float, (p.rows * p.ld));
  p.factor = CH_NEW(&x->scratch, float, p.rows);
  p.loss = CH_NEW(&x->scratch, double, p.rows);
  if (a->paired) {
    p.delta = CH_NEW(&x->scratch, float, p.rows / 2 * p.ld);
    p.pair = CH_NEW(&x->scratch, double, p.rows / 2);
  }
  if (a->dx) {
    p.scaled = CH_NEW(&x->scratch, float, p.rows * a->d);
    p.partial = CH_NEW(&x->scratch, float, (p.parts * p.rows * a->d));
  }
  p.bf16 = x->compute == CH_COMPUTE_BF16;
  if (p.bf16) p.w = ch_rounded_operand(x, a->w, a->w16, (int64_t)a->V * a->d);
  if (p.bf16 && a->dx) p.rounded = CH_NEW(&x->scratch, ch_bf16, p.rows * p.ld), p.round = CH_SIMD_PICK(ch_round_matrix);
  pack_weights(x, a, &p);
  return p;
}

/* An operand other than the weights, rounded if the compute type is bf16. */
static const void *operand(ch_exec *x, const float *array, int64_t count) {
  return x->compute == CH_COMPUTE_BF16 ? ch_rounded_operand(x, array, NULL, count) : (const void *)array;
}

/* Computes the logits of all chunks in memory. */
static void multiply_chunks(ch_exec *x, const ch_head_args *a, const head_plan *p, const row_span *s) {
  CH_SCRATCH(x);
  ch_product forward[MAX_AT_ONCE];
  const void *rows = operand(x, a->x + s->first * a->d, s->rows * a->d);
  int chunks = 0;
  for (int64_t r = 0; r < s->rows || !chunks; r += p->chunk, chunks++) {
    forward[chunks] = logits_of(a, p);
    forward[chunks].m = smaller(p->chunk, s->rows - r);
    forward[chunks].a = element(p, rows, r * a->d);
    forward[chunks].c = p->logits + (s->at + r) * p->ld;
  }
  ch_products_run(x, chunks, ch_cut_alone, forward);
}

static void logits_product(ch_exec *x, const ch_head_args *a, const head_plan *p, const row_span *s) {
  if (a->w8)
    ch_q8_gemm(x, &(ch_gemm_args){.m = s->rows,
                                  .n = a->V,
                                  .k = a->d,
                                  .a = a->x + s->first * a->d,
                                  .b8 = a->w8,
                                  .c = p->logits + s->at * p->ld,
                                  .ldc = p->ld,
                                  .alpha = a->scale});
  else
    multiply_chunks(x, a, p, s);
  if (ch_counting(x) || !a->logits) return;
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < s->rows; i++)
    memcpy(a->logits + (s->first + i) * a->V, p->logits + (s->at + i) * p->ld, (size_t)a->V * sizeof(float));
}

typedef double cross_entropy_of(int, int, float *, double *);

/* Row i of a span: writes its loss and exponentials; returns their sum, or 0 without a target. */
static double row_loss(const ch_head_args *a, const head_plan *p, const row_span *s, int64_t i,
                       cross_entropy_of *cross_entropy) {
  int64_t row = s->first + i, at = s->at + i;
  float *logits = p->logits + at * p->ld;
  double sum = 0;
  p->loss[at] = 0;
  if (a->target[row] >= 0)
    p->loss[at] = cross_entropy(a->V, a->target[row], logits, &sum);
  else
    memset(logits, 0, (size_t)a->V * sizeof *logits);
  return sum;
}

/* Turns a row of exponentials into the gradient divided by `factor`, which is stored separately: subtracts their sum
 * `share` at the target. Rounds the row while it is in the cache. */
static void row_gradient(const ch_head_args *a, const head_plan *p, const row_span *s, int64_t i, double share,
                         double factor) {
  int64_t row = s->first + i, at = s->at + i;
  float *logits = p->logits + at * p->ld;
  if (a->target[row] >= 0) logits[a->target[row]] -= (float)share;
  if (p->rounded) p->round(1, a->V, logits, 0, p->rounded + at * p->ld);
  p->factor[at] = (float)factor;
  for (int c = 0; a->dx && c < a->d; c++) p->scaled[at * a->d + c] = p->factor[at] * a->x[row * a->d + c];
}

static void losses(ch_exec *x, const ch_head_args *a, const head_plan *p, const row_span *s) {
  cross_entropy_of *cross_entropy = CH_SIMD_PICK(ch_cross_entropy);
#pragma omp parallel for schedule(dynamic, 4) num_threads(x->threads)
  for (int64_t i = 0; i < s->rows; i++) {
    double sum = row_loss(a, p, s, i, cross_entropy);
    double weight = (double)a->weight * ch_row_weight(a, s->first + i);
    row_gradient(a, p, s, i, sum, sum > 0 ? weight * (double)a->scale / sum : sum);
  }
}

/* Losses of pairs: row i of both spans. */
static void pair_losses(ch_exec *x, const ch_head_args *a, const head_plan *p, const row_span *s) {
  cross_entropy_of *cross_entropy = CH_SIMD_PICK(ch_cross_entropy);
  double (*consistency)(const ch_pair *, float *, float *) = CH_SIMD_PICK(ch_consistency);
#pragma omp parallel for schedule(dynamic, 4) num_threads(x->threads)
  for (int64_t i = 0; i < s->rows; i++) {
    float *z = p->logits + (s[0].at + i) * p->ld, *y = p->logits + (s[1].at + i) * p->ld, *delta = p->delta + i * p->ld;
    for (int v = 0; v < a->V; v++) delta[v] = z[v] - y[v];
    ch_pair pair = {.count = a->V, .delta = delta, .weight = a->weight, .consistency = a->consistency};
    for (int h = 0; h < 2; h++) pair.sum[h] = row_loss(a, p, &s[h], i, cross_entropy);
    p->pair[i] = a->target[s->first + i] >= 0 ? consistency(&pair, z, y) : 0;
    for (int h = 0; h < 2; h++) row_gradient(a, p, &s[h], i, (double)a->weight, (double)a->scale);
  }
  for (int64_t i = 0; i < s->rows; i++) *a->consistency_sum += p->pair[i];
}

/* dx of every chunk: one product per part of the vocabulary, then their sum, in order, times factor. */
static void input_gradient(ch_exec *x, const ch_head_args *a, const head_plan *p, const row_span *s, const void *e) {
  ch_product part[MAX_AT_ONCE * MAX_PARTS];
  int64_t rows = s->rows, size = rows * a->d;
  int count = 0;
  for (int64_t r = 0; r < rows || !count; r += p->chunk)
    for (int64_t i = 0, word = 0; i < p->parts; word += part[count++].k, i++) {
      part[count] = part_of(a, p, i);
      part[count].m = smaller(p->chunk, rows - r);
      part[count].a = element(p, e, r * p->ld + word);
      part[count].c = p->partial + i * size + r * a->d;
    }
  const ch_tiling of_parts = {.pieces = ch_cut_alone.pieces / (double)p->parts, .smallest = ch_cut_alone.smallest};
  ch_products_run(x, count, of_parts, part);
  if (ch_counting(x)) return;
#pragma omp parallel for num_threads(x->threads)
  for (int64_t r = 0; r < rows; r++)
    for (int c = 0; c < a->d; c++) {
      float sum = 0;
      for (int64_t i = 0; i < p->parts; i++) sum += p->partial[i * size + r * a->d + c];
      a->dx[(s->first + r) * a->d + c] = p->factor[s->at + r] * sum;
    }
}

static void gradients(ch_exec *x, const ch_head_args *a, const head_plan *p, const row_span *s) {
  size_t mark = ch_arena_mark(&x->scratch);
  const void *e = p->rounded ? (const void *)(p->rounded + s->at * p->ld) : p->logits + s->at * p->ld;
  input_gradient(x, a, p, s, e);
  ch_product dw = {.trans_a = 1,
                   .accumulate = a->accumulate || s->first > 0,
                   .bf16 = p->bf16,
                   .m = a->V,
                   .n = a->d,
                   .k = s->rows,
                   .depth = p->chunk,
                   .lda = p->ld,
                   .ldb = a->d,
                   .ldc = a->d,
                   .a = e,
                   .b = operand(x, p->scaled + s->at * a->d, s->rows * a->d),
                   .c = a->dw,
                   .alpha = 1};
  ch_products_run(x, 1, ch_cut_alone, &dw);
  ch_arena_release(&x->scratch, mark);
}

/* Rows [first, first+rows) and, if paired, their partners n/2 rows later. */
static void head_rows(ch_exec *x, const ch_head_args *a, const head_plan *p, int64_t first, int64_t rows) {
  const row_span s[] = {{first, rows, 0}, {a->n / 2 + first, rows, rows}};
  int spans = a->paired ? 2 : 1;
  for (int h = 0; h < spans; h++) logits_product(x, a, p, &s[h]);
  if (!ch_counting(x)) {
    if (a->paired)
      pair_losses(x, a, p, s);
    else
      losses(x, a, p, s);
    for (int64_t i = 0; i < spans * rows; i++) {
      int64_t row = s[i / rows].first + i % rows;
      *a->loss_sum += ch_row_weight(a, row) * p->loss[i];
      if (a->token_loss) a->token_loss[row] = (float)p->loss[i];
    }
  }
  for (int h = 0; h < spans && a->dx; h++) gradients(x, a, p, &s[h]);
}

static void head(ch_exec *x, const ch_head_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  head_plan p = make_plan(x, a);
  int64_t n = a->paired ? a->n / 2 : a->n, max = a->paired ? p.rows / 2 : p.rows;
  if (ch_counting(x)) {
    head_rows(x, a, &p, 0, max);
  } else {
    *a->loss_sum = 0;
    if (a->paired) *a->consistency_sum = 0;
    int64_t first = 0; /* runs once even without rows, to set dw */
    do head_rows(x, a, &p, first, n - first < max ? n - first : max);
    while ((first += max) < n);
    if (a->loss_total) *a->loss_total += *a->loss_sum;
  }
  ch_arena_release(&x->scratch, mark);
}

void ch_threaded_fill_head(ch_ops *ops) { ops->head = head; }
