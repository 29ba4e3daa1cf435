/* Products on all threads: every product is split into rectangles of its output (pieces), which threads take one at a
 * time. The split depends only on the product's shape, so that results do not depend on the number of threads or on the
 * call's other products: a process with half of the experts gets the same bits as one with all of them. */
#include <omp.h>

#include "cpu/simd/fill.h"
#include "cpu/threaded/product.h"

enum {
  ROW_EDGE =
      64, /* pieces with at most this many rows are not split by rows: packed operands would be reused too rarely, */
  COLUMN_EDGE = 128, /* nor by columns; wide pieces are better than tall ones */
  ROW_STEP = 32,     /* pieces are multiples of the kernels' tiles */
  COLUMN_STEP = CH_PANEL_COLUMNS,
  LARGE = 1 << 20,   /* elements of B */
  WORTH_IT = 4000000 /* min cost for a second thread: 20 microseconds. Small layers use one thread, so that other load
                        on the cores does not delay their products */
};

typedef struct {
  int64_t rows, columns; /* of a piece */
  int64_t across;        /* pieces per row of pieces */
  int64_t begin;         /* index of the first piece, over all products */
} cut;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t size, int64_t step) { return ceil_div(size, step) * step; }

/* Cost: operations in whole tiles, plus 32 per element read, packed or written. About 200 cost units per nanosecond. */
static double cost(int64_t rows, int64_t columns, int64_t depth) {
  double m = (double)rows, n = (double)round_up(columns, COLUMN_STEP), k = (double)depth;
  return 2 * m * n * k + 32 * (m * k + k * n + m * n);
}

static int64_t part(int64_t size, int64_t pieces, int64_t step) {
  int64_t rounded = round_up(ceil_div(size, pieces), step);
  return rounded < size ? rounded : size;
}

/* Increases the number of pieces along an edge until a piece costs at most `target` and has at most `max` elements (0:
 * no limit). Rows are kept near half of the columns, or near twice the columns if B exceeds the cache, because pieces
 * in the same columns read and pack the same part of B. */
static cut cut_product(const ch_product *p, double target, int64_t max) {
  cut c = {p->m, p->n, 1, 0};
  int64_t down = 1, across = 1;
  double rows_per_column = p->n * p->k >= LARGE ? 2 : 0.5;
  while ((cost(c.rows, c.columns, p->k) > target || (max && c.rows * c.columns > max)) &&
         (c.rows > ROW_EDGE || c.columns > COLUMN_EDGE)) {
    if (c.rows > ROW_EDGE && ((double)c.rows >= rows_per_column * (double)c.columns || c.columns <= COLUMN_EDGE))
      c.rows = part(p->m, ++down, ROW_STEP);
    else
      c.columns = part(p->n, ++across, COLUMN_STEP);
  }
  c.across = c.columns > 0 ? ceil_div(p->n, c.columns) : 0;
  return c;
}

/* Number of pieces of equal cost: a power of two, which balances as many threads. */
static double count_of(double whole, const ch_tiling *cutting) {
  double max = whole / cutting->smallest < cutting->pieces ? whole / cutting->smallest : cutting->pieces, count = 1;
  while (count < max) count *= 2;
  return count;
}

/* Splits all products; returns the number of pieces; *all: their total cost. */
static int64_t cut_all(int count, ch_tiling cutting, const ch_product *products, cut *cuts, double *all) {
  int64_t pieces = 0;
  *all = 0;
  for (int i = 0; i < count; i++) {
    double whole = cost(products[i].m, products[i].n, products[i].k);
    *all += whole;
    cuts[i] = cut_product(&products[i], whole / count_of(whole, &cutting), cutting.output);
    cuts[i].begin = pieces;
    if (cuts[i].rows > 0) pieces += ceil_div(products[i].m, cuts[i].rows) * cuts[i].across;
  }
  return pieces;
}

/* Pointer to element `begin` of an operand. */
static const void *at(int bf16, const void *operand, int64_t begin) {
  return (const char *)operand + begin * (int64_t)(bf16 ? sizeof(ch_bf16) : sizeof(float));
}

/* The product of piece `index`. */
static ch_product piece_of(const ch_product *p, const cut *c, int64_t index) {
  int64_t i = index / c->across * c->rows, j = index % c->across * c->columns;
  ch_product piece = *p;
  piece.m = p->m - i < c->rows ? p->m - i : c->rows;
  piece.n = p->n - j < c->columns ? p->n - j : c->columns;
  piece.a = at(p->bf16, p->a, p->trans_a ? i : i * p->lda);
  piece.b = at(p->bf16 && !p->rounds, p->b, p->trans_b ? j * p->ldb : j);
  if (p->panels) piece.panels += j * ch_product_steps(p);
  if (p->c) piece.c = p->c + i * p->ldc + j;
  piece.element += i * p->ldc + j;
  return piece;
}

/* Index of the product that contains `piece`. */
static int product_of(const cut *cuts, int count, int64_t piece) {
  int low = 0, high = count - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (cuts[middle].begin <= piece)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

/* A thread's scratch in addition to the product's: see ch_tiling. */
typedef struct {
  float *output;
  ch_bf16 *rounded;
  int64_t max; /* max elements per piece */
} piece_buffers;

static piece_buffers buffers_of(ch_exec *x, const ch_tiling *cutting) {
  piece_buffers r = {.max = cutting->rounded};
  if (cutting->output_size) r.output = CH_NEW(&x->scratch, float, x->threads * cutting->output_size);
  if (cutting->rounded) r.rounded = CH_NEW(&x->scratch, ch_bf16, x->threads * cutting->rounded);
  return r;
}

/* Rounds `columns` columns of B from column j and computes these columns of a piece. The depth slices are those of the
 * whole piece, so that bits equal those with B rounded in advance. */
static void run_columns(const ch_product *p, int64_t j, int64_t columns, ch_bf16 *rounded, void *scratch) {
  ch_product part = *p;
  int64_t rows = p->trans_b ? columns : p->k, width = p->trans_b ? p->k : columns;
  part.n = columns;
  part.columns = p->n;
  CH_SIMD_PICK(ch_round_matrix)(rows, width, at(0, p->b, p->trans_b ? j * p->ldb : j), p->ldb, rounded);
  part.b = rounded;
  part.ldb = width;
  part.c += j;
  ch_product_run(&part, scratch);
}

/* Runs the slices of the inner dimension in order. */
static void run_depths(const ch_product *p, void *scratch) {
  for (int64_t begin = 0; begin < p->k; begin += p->depth) {
    ch_product part = *p;
    part.k = p->k - begin < p->depth ? p->k - begin : p->depth;
    part.a = at(p->bf16, p->a, p->trans_a ? begin * p->lda : begin);
    part.b = at(p->bf16, p->b, p->trans_b ? begin : begin * p->ldb);
    part.accumulate |= begin > 0;
    ch_product_run(&part, scratch);
  }
}

static void run_product(const ch_product *p, const piece_buffers *r, void *scratch) {
  if (p->depth && p->k > p->depth) {
    run_depths(p, scratch);
    return;
  }
  if (!p->rounds || p->k <= 0) {
    ch_product_run(p, scratch);
    return;
  }
  int64_t step = r->max / p->k / COLUMN_STEP * COLUMN_STEP;
  for (int64_t j = 0; j < p->n; j += step) run_columns(p, j, p->n - j < step ? p->n - j : step, r->rounded, scratch);
}

/* Runs a piece and its activation, if any. If c is NULL the piece is computed in r->output. */
static void run_piece(ch_product *p, const piece_buffers *r, void *scratch) {
  int64_t ldc = p->ldc; /* also of the activation's arrays */
  if (!p->c) {
    p->c = r->output;
    p->ldc = p->n;
  }
  run_product(p, r, scratch);
  if (!p->activate) return;
  ch_activate_run *run = CH_SIMD_PICK(ch_activate_elements); /* reads the environment: outside the loop */
  for (int64_t i = 0; i < p->m; i++) run(p->activate, p->c + i * p->ldc, p->element + i * ldc, p->n);
}

void ch_products_run(ch_exec *x, int count, ch_tiling cutting, const ch_product *products) {
  CH_SCRATCH(x);
  cut *cuts = CH_NEW(&x->scratch, cut, count);
  char *scratch = CH_NEW(&x->scratch, char, ((int64_t)x->threads * CH_PRODUCT_SCRATCH));
  piece_buffers all = buffers_of(x, &cutting);
  if (ch_counting(x)) return;
  double all_cost;
  int64_t pieces = cut_all(count, cutting, products, cuts, &all_cost);
#pragma omp parallel num_threads(pieces > 1 ? ch_threads_for(x, (int64_t)all_cost, WORTH_IT) : 1)
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < pieces; i++) {
      int which = product_of(cuts, count, i);
      ch_product piece = piece_of(&products[which], &cuts[which], i - cuts[which].begin);
      int64_t thread = omp_get_thread_num();
      piece_buffers buffers = {all.output ? all.output + thread * cutting.output_size : NULL,
                               all.rounded ? all.rounded + thread * cutting.rounded : NULL, all.max};
      run_piece(&piece, &buffers, scratch + thread * CH_PRODUCT_SCRATCH);
    }
  }
}
