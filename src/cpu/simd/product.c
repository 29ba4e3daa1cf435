/* Products on one thread, of floats or bf16. Bf16 is multiplied in pairs if the CPU has an instruction for it,
 * otherwise widened to floats during packing. Operand `left` (floats or pairs) is usually read in place, one element at
 * a time; operand `right` is copied into panels of a tile's columns. Weights are read once, in memory order, and
 * prefetched: with few rows per expert, reading weights takes as long as the multiplications, and packing both
 * operands, as libraries do, would take even longer. */
#include "cpu/simd/product.h"

#include "cpu/simd/output.h"
#include "cpu/simd/pack.h"

enum {
  NARROW = 256, /* up to this many columns of B, packing A does not pay, ... */
  NEAR = 1024   /* ... if its steps are at most this many floats apart */
};

/* Max depth of a slice such that panels of all n columns of B, and the rows of A of two tiles, fit the scratch. */
static int64_t max_depth(int64_t n) {
  return ch_min(CH_PRODUCT_BUFFER / ch_round_up(n, CH_TILE_COLUMNS), CH_PRODUCT_MORE / (2 * CH_TILE_ROWS)) /
         CH_PRODUCT_STEP * CH_PRODUCT_STEP;
}

static ch_problem roles(const ch_product *p) {
  int pairs = CH_HAS_PAIRS && p->bf16 && ch_product_in_pairs(p);
  ch_factors factors = pairs ? CH_PAIRS : p->bf16 ? CH_WIDENED : CH_FLOATS;
  int64_t each = pairs ? 2 : 1; /* elements per step */
  ch_problem q = {.m = p->m,
                  .n = p->n,
                  .k = ch_ceil_div(p->k, each),
                  .factors = factors,
                  .odd = p->k % each != 0,
                  .a = p->a,
                  .b = p->b,
                  .row = p->trans_a ? 1 : p->lda / each,
                  .step = p->trans_a ? p->lda : 1,
                  .ldb = p->trans_b ? p->ldb / each : p->ldb,
                  .b_transposed = p->trans_b,
                  .add = p->accumulate,
                  .c = p->c,
                  .ldc = p->ldc,
                  .alpha = p->alpha};
  if (p->panels) q.b = p->panels, q.ldb = q.k, q.b_transposed = q.in_panels = 1;
  q.streams = p->large && q.k <= CH_PRODUCT_DEPTH && ch_write_aligned(p->c, p->ldc);
  if (ch_better_swapped(p, q.k, max_depth(p->m))) {
    q.m = p->n;
    q.n = p->m;
    q.a = p->b;
    q.row = p->ldb / each;
    q.b = p->a;
    q.ldb = p->lda / each;
    q.c_transposed = 1;
  }
  return q;
}

/* A block of the work: rows begin .. end-1, steps first .. first+depth-1. */
typedef struct {
  int64_t begin, end, first, depth;
  int add;
  const float *packed; /* the packed left operand, or NULL */
} product_block;

/* Whether to pack A: if it is widened, if its pairs are not adjacent, or if its steps are so far apart or read so often
 * that packing pays. */
static int packs_left(const ch_problem *q) {
  if (q->factors != CH_FLOATS) return q->factors == CH_WIDENED || q->step != 1;
  return q->step != 1 && (q->n > NARROW || q->step > NEAR);
}

/* The left operand of the tile at row i. */
static ch_left left_of(const ch_problem *q, const product_block *b, int64_t i) {
  int64_t row = i - b->begin;
  if (!b->packed) return (ch_left){(const ch_factor *)q->a + i * q->row + b->first * q->step, q->row, q->step};
  if (q->step == 1) return (ch_left){b->packed + row * b->depth, b->depth, 1};
  return (ch_left){b->packed + row / CH_PACK_GROUP * CH_PACK_GROUP * b->depth + row % CH_PACK_GROUP, 1, CH_PACK_GROUP};
}

/* Prefetching of B: the number of rows of a panel, and the memory to prefetch after panel j, from row `from` on. A
 * transposed panel that can be prefetched is contiguous; it is divided into as many pieces as an untransposed panel has
 * rows. */
static int64_t rows_of_panel(const ch_problem *q, const product_block *b) {
  return b->depth * (q->factors == CH_PAIRS ? 2 : 1);
}
static ch_ahead next_panel(const ch_problem *q, const product_block *b, int64_t j, int64_t from) {
  int64_t each = q->factors == CH_PAIRS ? 2 : 1, size = q->factors == CH_FLOATS ? sizeof(float) : sizeof(ch_bf16);
  int64_t next = j + CH_TILE_COLUMNS, row = CH_TILE_COLUMNS * size;
  if (q->b_transposed) return (ch_ahead){(const char *)q->b + next * q->ldb * each * size + from * row, row};
  return (ch_ahead){(const char *)q->b + ((b->first * each + from) * q->ldb + next) * size, q->ldb * size};
}

/* Whether to prefetch the panel after j: only a full panel; a transposed one must have no gaps between columns. */
static int fetches_next(const ch_problem *q, const product_block *b, int64_t j) {
  return q->factors != CH_WIDENED && (!q->b_transposed || q->ldb == b->depth) && j + 2 * CH_TILE_COLUMNS <= q->n;
}

/* Loops over panels outside and rows inside: for a B larger than A. The first tile packs the panel on the fly if
 * possible, and every tile prefetches some rows of the next panel. */
static void panels_outer(const ch_problem *q, const product_block *b, float *scratch) {
  int pairs = q->factors == CH_PAIRS;
  const float *panel = scratch;
  for (int64_t j = 0; j < q->n; j += CH_TILE_COLUMNS) {
    const float *source = (const float *)q->b + b->first * q->ldb + j; /* if B holds floats */
    int packs =
        q->factors != CH_FLOATS || q->b_transposed || j + CH_TILE_COLUMNS > q->n || b->end - b->begin < CH_TILE_ROWS;
    int fetches = fetches_next(q, b, j);
    if (q->in_panels)
      panel = (const float *)q->b + j * q->k + b->first * CH_TILE_COLUMNS;
    else if (packs)
      ch_pack_panel(q, j, b->first, b->depth, scratch);
    for (int64_t i = b->begin, step = 0; i < b->end; i += CH_TILE_ROWS, step++) {
      ch_task t = {i, j, b->depth, left_of(q, b, i), {panel, CH_TILE_COLUMNS, NULL}, {panel, 0}, b->add};
      if (!packs && i == b->begin) t.b = (ch_right){source, q->ldb, scratch};
      int64_t fetched = step * (b->depth / (2 * ch_tile_lines(pairs)));
      if (fetches && fetched < rows_of_panel(q, b)) t.ahead = next_panel(q, b, j, fetched);
      ch_run_tile(q, &t, b->end - i);
    }
  }
}

/* Loops over rows outside and packed panels inside: for an A larger than B. */
static void rows_outer(const ch_problem *q, const product_block *b, const float *panels) {
  int64_t lines = ch_tile_lines(q->factors == CH_PAIRS);
  for (int64_t i = b->begin; i < b->end; i += CH_TILE_ROWS)
    for (int64_t j = 0; j < q->n; j += CH_TILE_COLUMNS) {
      const float *panel = panels + j * b->depth;
      ch_task t = {i, j, b->depth, left_of(q, b, i), {panel, CH_TILE_COLUMNS, NULL}, {panel, 0}, b->add};
      if (!j && b->depth == q->row) t.ahead = (ch_ahead){t.a.at + CH_TILE_ROWS * q->row, 64 * lines};
      ch_run_tile(q, &t, b->end - i);
    }
}

/* Max rows of A, a multiple of `unit`, in `elements` floats. */
static int64_t rows_in(int64_t elements, int64_t depth, int64_t unit) { return elements / depth / unit * unit; }

/* Computes one slice, in blocks of rows; if A is packed, a block has as many rows as the scratch holds. */
static void run_slice(const ch_problem *q, int64_t first, int64_t depth, float *scratch) {
  int packs = packs_left(q);
  int64_t panels = q->c_transposed ? CH_PRODUCT_BUFFER : depth * CH_TILE_COLUMNS;
  int64_t rows = !packs            ? q->m
                 : q->c_transposed ? rows_in(CH_PRODUCT_MORE, depth, CH_TILE_ROWS)
                                   : rows_in(CH_PRODUCT_BUFFER - panels, depth, CH_PACK_GROUP);
  for (int64_t j = 0; j < q->n && q->c_transposed; j += CH_TILE_COLUMNS)
    ch_pack_panel(q, j, first, depth, scratch + j * depth);
  for (int64_t i = 0; i < q->m; i += rows) {
    product_block b = {i, ch_min(i + rows, q->m), first, depth, q->add || first > 0, packs ? scratch + panels : NULL};
    if (packs) ch_pack_left(q, i, b.end - i, first, depth, scratch + panels);
    if (q->c_transposed)
      rows_outer(q, &b, scratch);
    else
      panels_outer(q, &b, scratch);
  }
}

void CH_SIMD(ch_product_pack)(const ch_product *p, float *panels) {
  ch_product plain = *p;
  plain.m = CH_PRODUCT_BUFFER; /* large m, so that the operands are not swapped */
  plain.panels = NULL;
  ch_problem q = roles(&plain);
  for (int64_t j = 0; j < q.n; j += CH_TILE_COLUMNS) ch_pack_panel(&q, j, 0, q.k, panels + j * q.k);
}

void CH_SIMD(ch_product_own)(const ch_product *p, float *scratch) {
  ch_problem q = roles(p);
  int64_t step = ch_product_slice(q.k, q.c_transposed ? max_depth(q.n) : CH_PRODUCT_DEPTH);
  for (int64_t first = 0; first < q.k; first += step) run_slice(&q, first, ch_min(step, q.k - first), scratch);
  if (q.streams) ch_store_past_end();
}
