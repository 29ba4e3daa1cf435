/* Products on one thread, of floats, or of bf16 that is widened to floats as it is packed. Of two operands of floats
 * one mostly stays where it is and is read an element at a time, `left`; the other is copied into panels of as many
 * columns as a tile has, `right`. Weights are read once, in the order they stand in, and what is read next is fetched
 * meanwhile: with few rows to an expert, reading weights takes as long as multiplying by them, and packing both
 * operands as libraries do would take longer still. */
#include "cpu/simd/product.h"

#include <string.h>

#include "cpu/simd/pack.h"

enum {
  ROOM = 1 << 18, /* floats of packed operands: no more than the cache of a core holds, */
  MORE_ROOM = CH_PRODUCT_BLOCK * CH_PRODUCT_BLOCK, /* and behind them, for rows of A where B takes all of it */
  MOST_SWAPPED = 512,                              /* columns of B at most when it stands in panels as a whole */
  PACK_COST = 1,                                   /* half cycles: to transpose an element into a panel, */
  SCATTER_COST = 2,                                /* to write one of a transposed output */
  NARROW = 256,                                    /* columns of B up to which packing A does not pay, ... */
  NEAR = 1024                                      /* ... if its steps are no more floats apart than this */
};

static int64_t round_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Whether vectors of an output are aligned, so that they can go past the caches. */
static int aligned(const float *c, int64_t ldc) { return ldc % CH_LANES == 0 && (uintptr_t)c % CH_VECTOR_BYTES == 0; }

/* The depth that is taken at once when B's n columns all stand in panels, and two tiles' rows of A beside them. */
static int64_t most_depth(int64_t n) {
  return ch_least(ROOM / round_up(n, CH_TILE_COLUMNS), MORE_ROOM / (2 * CH_TILE_ROWS)) / CH_PRODUCT_STEP *
         CH_PRODUCT_STEP;
}

/* A B^T either has B transposed into panels, or is (B A^T)^T: then A is, and so is the output, once for each slice of
 * the depth. */
static int better_swapped(const ch_product *p) {
  if (!p->trans_b || p->trans_a || p->m > MOST_SWAPPED) return 0;
  double m = (double)p->m, n = (double)p->n, k = (double)p->k, slices = (double)ceil_div(p->k, most_depth(p->m));
  return m * k * PACK_COST + m * n * slices * SCATTER_COST < n * k * PACK_COST;
}

static ch_problem roles(const ch_product *p) {
  ch_problem q = {.m = p->m,
                  .n = p->n,
                  .k = p->k,
                  .bf16 = p->bf16,
                  .a = p->a,
                  .b = p->b,
                  .row = p->trans_a ? 1 : p->lda,
                  .step = p->trans_a ? p->lda : 1,
                  .ldb = p->ldb,
                  .b_transposed = p->trans_b,
                  .add = p->accumulate,
                  .c = p->c,
                  .ldc = p->ldc,
                  .alpha = p->alpha,
                  .streams = p->large && p->k <= CH_PRODUCT_DEPTH && aligned(p->c, p->ldc)};
  if (better_swapped(p)) {
    q.m = p->n;
    q.n = p->m;
    q.a = p->b;
    q.row = p->ldb;
    q.b = p->a;
    q.ldb = p->lda;
    q.c_transposed = 1;
  }
  return q;
}

/* Writes a tile that is not whole. */
static void write_part(const ch_problem *q, const float *tile, float *c, int64_t rows, int64_t columns, int add) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t l = 0; l < columns; l++) {
      float sum = tile[r * CH_TILE_COLUMNS + l], *at = c + r * q->ldc + l;
      *at = add ? ch_fma(q->alpha, sum, *at) : q->alpha * sum;
    }
}

/* Writes the transpose of a tile: `rows` floats of each column. */
CH_TILE_INLINE void write_columns(const ch_problem *q, const float *tile, float *c, int64_t rows, int64_t columns,
                                  int add) {
  for (int64_t l = 0; l < columns; l++, c += q->ldc)
#pragma GCC unroll 6
    for (int64_t r = 0; r < rows; r++) {
      float sum = tile[r * CH_TILE_COLUMNS + l];
      c[r] = add ? ch_fma(q->alpha, sum, c[r]) : q->alpha * sum;
    }
}

static void write_transposed(const ch_problem *q, const float *tile, float *c, int64_t rows, int64_t columns, int add) {
  if (rows == CH_TILE_ROWS && !add) /* the usual case, without branches */
    write_columns(q, tile, c, CH_TILE_ROWS, columns, 0);
  else
    write_columns(q, tile, c, rows, columns, add);
}

/* One tile of C: where its operands are and how many steps there are. */
typedef struct {
  int64_t i, j, depth;
  ch_left a;
  ch_right b;
  ch_ahead ahead;
  int add;
} task;

/* Computes it, with `rows` known when this is compiled. */
CH_TILE_INLINE void tile(const ch_problem *q, const task *t, int rows, int copying) {
  ch_vector sum[CH_TILE_ROWS][CH_TILE_VECTORS];
  ch_right b = {t->b.at, copying ? t->b.step : CH_TILE_COLUMNS, copying ? t->b.copy : NULL};
  float *c = q->c_transposed ? q->c + t->j * q->ldc + t->i : q->c + t->i * q->ldc + t->j;
  int64_t columns = ch_least(q->n - t->j, CH_TILE_COLUMNS);
  int whole = !q->c_transposed && columns == CH_TILE_COLUMNS;
  int streams = q->streams && !t->add;
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
    for (int v = 0; v < CH_TILE_VECTORS; v++) sum[r][v] = (ch_vector){0};
  for (int r = 0; r < rows && whole && !streams; r++)
    for (int v = 0; v < CH_TILE_COLUMNS; v += 16) __builtin_prefetch(c + r * q->ldc + v, 1);
  ch_tile_steps(rows, t->depth, t->a, b, t->ahead, sum);
  if (!whole) {
    float part[CH_TILE_ROWS * CH_TILE_COLUMNS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
      for (int v = 0; v < CH_TILE_VECTORS; v++) ch_store(part + r * CH_TILE_COLUMNS + v * CH_LANES, sum[r][v]);
    (q->c_transposed ? write_transposed : write_part)(q, part, c, rows, columns, t->add);
    return;
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++, c += q->ldc)
#pragma GCC unroll 4
    for (int v = 0; v < CH_TILE_VECTORS; v++) {
      ch_vector value = q->alpha * sum[r][v];
      if (t->add) value = ch_vector_fma(ch_splat(q->alpha), sum[r][v], ch_load(c + v * CH_LANES));
      if (streams)
        ch_store_past(c + v * CH_LANES, value);
      else
        ch_store(c + v * CH_LANES, value);
    }
}

static void run(const ch_problem *q, const task *t, int64_t rows) {
  if (t->b.copy) {
    tile(q, t, CH_TILE_ROWS, 1);
    return;
  }
  switch (rows) {
    case 1:
      tile(q, t, 1, 0);
      break;
    case 2:
      tile(q, t, 2, 0);
      break;
    case 3:
      tile(q, t, 3, 0);
      break;
    case 4:
      tile(q, t, 4, 0);
      break;
    case 5:
      tile(q, t, 5, 0);
      break;
    default:
      tile(q, t, CH_TILE_ROWS, 0);
  }
}

/* A part of the work: rows begin .. end-1, steps first .. first+depth-1. */
typedef struct {
  int64_t begin, end, first, depth;
  int add;
  const float *packed; /* the left operand where it is packed, or NULL */
} block;

/* Whether A must be packed: it is bf16, or its steps lie so far apart, or are read so often, that it pays. */
static int packs_left(const ch_problem *q) { return q->bf16 || (q->step != 1 && (q->n > NARROW || q->step > NEAR)); }

/* The left operand of the tile at row i. */
static ch_left left_of(const ch_problem *q, const block *b, int64_t i) {
  int64_t row = i - b->begin;
  if (!b->packed) return (ch_left){(const float *)q->a + i * q->row + b->first * q->step, q->row, q->step};
  if (q->step == 1) return (ch_left){b->packed + row * b->depth, b->depth, 1};
  return (ch_left){b->packed + row / CH_PACK_GROUP * CH_PACK_GROUP * b->depth + row % CH_PACK_GROUP, 1, CH_PACK_GROUP};
}

/* Panel after panel, every row with each: for a B that is larger than A. The first tile packs the panel as it goes, if
 * it can; all fetch the next one, some rows each until it is there. */
static void panels_outer(const ch_problem *q, const block *b, float *panel) {
  for (int64_t j = 0; j < q->n; j += CH_TILE_COLUMNS) {
    const float *source = (const float *)q->b + b->first * q->ldb + j; /* if it is floats */
    int packs = q->bf16 || q->b_transposed || j + CH_TILE_COLUMNS > q->n || b->end - b->begin < CH_TILE_ROWS;
    int fetches = !q->bf16 && !q->b_transposed && j + 2 * CH_TILE_COLUMNS <= q->n;
    if (packs) ch_pack_panel(q, j, b->first, b->depth, panel);
    for (int64_t i = b->begin, turn = 0; i < b->end; i += CH_TILE_ROWS, turn++) {
      task t = {i, j, b->depth, left_of(q, b, i), {panel, CH_TILE_COLUMNS, NULL}, {panel, 0}, b->add};
      if (!packs && i == b->begin) t.b = (ch_right){source, q->ldb, panel};
      int64_t fetched = turn * (b->depth / CH_TILE_FETCH);
      if (fetches && fetched < b->depth) t.ahead = (ch_ahead){source + CH_TILE_COLUMNS + fetched * q->ldb, q->ldb};
      run(q, &t, b->end - i);
    }
  }
}

/* Row after row with all panels, which are packed: for an A that is larger than B. */
static void rows_outer(const ch_problem *q, const block *b, const float *panels) {
  for (int64_t i = b->begin; i < b->end; i += CH_TILE_ROWS)
    for (int64_t j = 0; j < q->n; j += CH_TILE_COLUMNS) {
      const float *panel = panels + j * b->depth;
      task t = {i, j, b->depth, left_of(q, b, i), {panel, CH_TILE_COLUMNS, NULL}, {panel, 0}, b->add};
      if (!j && b->depth == q->row) t.ahead = (ch_ahead){t.a.at + CH_TILE_ROWS * q->row, CH_TILE_COLUMNS};
      run(q, &t, b->end - i);
    }
}

/* Rows of A that `room` floats hold. */
static int64_t rows_in(int64_t room, int64_t depth, int64_t unit) { return room / depth / unit * unit; }

/* The steps of one slice, in blocks of as many rows as there is room for where A is packed. */
static void run_slice(const ch_problem *q, int64_t first, int64_t depth, float *scratch) {
  int packs = packs_left(q);
  int64_t panels = q->c_transposed ? ROOM : depth * CH_TILE_COLUMNS;
  int64_t rows = !packs            ? q->m
                 : q->c_transposed ? rows_in(MORE_ROOM, depth, CH_TILE_ROWS)
                                   : rows_in(ROOM - panels, depth, CH_PACK_GROUP);
  for (int64_t j = 0; j < q->n && q->c_transposed; j += CH_TILE_COLUMNS)
    ch_pack_panel(q, j, first, depth, scratch + j * depth);
  for (int64_t i = 0; i < q->m; i += rows) {
    block b = {i, ch_least(i + rows, q->m), first, depth, q->add || first > 0, packs ? scratch + panels : NULL};
    if (packs) ch_pack_left(q, i, b.end - i, first, depth, scratch + panels);
    if (q->c_transposed)
      rows_outer(q, &b, scratch);
    else
      panels_outer(q, &b, scratch);
  }
}

void CH_SIMD(ch_product_own)(const ch_product *p, float *scratch) {
  ch_problem q = roles(p);
  int64_t step = ch_product_slice(q.k, q.c_transposed ? most_depth(q.n) : CH_PRODUCT_DEPTH);
  for (int64_t first = 0; first < q.k; first += step) run_slice(&q, first, ch_least(step, q.k - first), scratch);
  if (q.streams) ch_store_past_end();
}

void CH_SIMD(ch_product_write)(int64_t rows, int64_t columns, const float *x, float *y, int64_t ldy) {
  int64_t whole = aligned(y, ldy) ? columns / CH_LANES * CH_LANES : 0;
  for (int64_t i = 0; i < rows; i++, x += columns, y += ldy) {
    for (int64_t j = 0; j < whole; j += CH_LANES) ch_store_past(y + j, ch_load(x + j));
    memcpy(y + whole, x + whole, (size_t)(columns - whole) * sizeof *y);
  }
  ch_store_past_end();
}
