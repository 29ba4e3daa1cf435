/* Float products on one thread. Of the two operands one stays where it is and is read an element at a time, `left`; the
 * other is copied into panels of as many columns as a tile has, `right`. Weights are read once, in the order they stand
 * in, and what is read next is fetched meanwhile: with few rows to an expert, reading weights takes as long as
 * multiplying by them, and packing both operands as libraries do would take longer still. */
#include "cpu/simd/product.h"

#include <string.h>

#include "cpu/simd/tile.h"
#include "cpu/simd/transpose.h"

enum {
  DEPTH = 512, /* most steps at once: a panel of them and the rows that it meets stay in the cache */
  DEPTH_STEP = 16,
  ROOM = 1 << 18,     /* floats of packed operands: no more than the cache of a core holds */
  MOST_SWAPPED = 512, /* columns of B at most when it stands in panels as a whole */
  PACK_COST = 1,      /* half cycles: to transpose an element into a panel, */
  SCATTER_COST = 2    /* to write one of a transposed output */
};

/* C[m,n] (+)= alpha A[m,k] B[k,n] with roles given out: a is the left operand; B's rows stand at ldb, or its columns
 * do where it is transposed; C too. */
typedef struct {
  int64_t m, n, k;
  ch_left a;
  const float *b;
  int64_t ldb;
  int b_transposed, c_transposed, add;
  int streams; /* the output goes past the caches */
  float *c;
  int64_t ldc;
  float alpha;
} problem;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t round_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Whether vectors of an output are aligned, so that they can go past the caches. */
static int aligned(const float *c, int64_t ldc) { return ldc % CH_LANES == 0 && (uintptr_t)c % CH_VECTOR_BYTES == 0; }

/* The depth that is taken at once when B's n columns all stand in panels. */
static int64_t most_depth(int64_t n) { return ROOM / round_up(n, CH_TILE_COLUMNS) / DEPTH_STEP * DEPTH_STEP; }

/* A B^T either has B transposed into panels, or is (B A^T)^T: then A is, and so is the output, once for each slice of
 * the depth. */
static int better_swapped(const ch_product *p) {
  if (!p->trans_b || p->trans_a || p->m > MOST_SWAPPED) return 0;
  double m = (double)p->m, n = (double)p->n, k = (double)p->k, slices = (double)ceil_div(p->k, most_depth(p->m));
  return m * k * PACK_COST + m * n * slices * SCATTER_COST < n * k * PACK_COST;
}

static problem roles(const ch_product *p) {
  const float *a = p->a, *b = p->b;
  problem q = {.m = p->m,
               .n = p->n,
               .k = p->k,
               .a = {a, p->trans_a ? 1 : p->lda, p->trans_a ? p->lda : 1},
               .b = b,
               .ldb = p->ldb,
               .b_transposed = p->trans_b,
               .add = p->accumulate,
               .c = p->c,
               .ldc = p->ldc,
               .alpha = p->alpha,
               .streams = p->large && p->k <= DEPTH && aligned(p->c, p->ldc)};
  if (better_swapped(p)) {
    q.m = p->n;
    q.n = p->m;
    q.a = (ch_left){b, p->ldb, 1};
    q.b = a;
    q.ldb = p->lda;
    q.c_transposed = 1;
  }
  return q;
}

/* Columns of B from j, `depth` rows from first, as [depth, CH_TILE_COLUMNS], filled up with zeros. */
static void pack_panel(const problem *q, int64_t j, int64_t first, int64_t depth, float *panel) {
  int64_t columns = least(q->n - j, CH_TILE_COLUMNS);
  if (q->b_transposed)
    ch_transpose(columns, depth, q->b + j * q->ldb + first, q->ldb, panel, CH_TILE_COLUMNS);
  else
    for (int64_t p = 0; p < depth; p++)
      memcpy(panel + p * CH_TILE_COLUMNS, q->b + (first + p) * q->ldb + j, (size_t)columns * sizeof(float));
  for (int64_t p = 0; p < depth && columns < CH_TILE_COLUMNS; p++)
    for (int64_t c = columns; c < CH_TILE_COLUMNS; c++) panel[p * CH_TILE_COLUMNS + c] = 0;
}

/* Floats that a packed group of rows takes: rows are copied eight floats at a time, so that two stand behind the last.
 */
static int64_t group_size(int64_t depth) { return (depth + 1) * CH_TILE_ROWS; }

/* Rows of A from i in groups of CH_TILE_ROWS, each [depth, CH_TILE_ROWS]: where steps are far apart a tile would touch
 * a cache line for every element of a row. Some groups at once, which share lines. */
static void pack_left(const problem *q, int64_t i, int64_t rows, int64_t first, int64_t depth, float *packed) {
  enum { GROUPS = 4, EIGHT = 8 };
  const float *from = q->a.at + i * q->a.row + first * q->a.step;
  int64_t begin = 0;
  for (; begin + (GROUPS - 1) * CH_TILE_ROWS + EIGHT <= rows; begin += GROUPS * CH_TILE_ROWS)
    for (int64_t p = 0; p < depth; p++)
      for (int g = 0; g < GROUPS; g++)
        memcpy(packed + (begin / CH_TILE_ROWS + g) * group_size(depth) + p * CH_TILE_ROWS,
               from + begin + g * CH_TILE_ROWS + p * q->a.step, EIGHT * sizeof(float));
  for (; begin < rows; begin += CH_TILE_ROWS)
    for (int64_t p = 0; p < depth; p++)
      memcpy(packed + begin / CH_TILE_ROWS * group_size(depth) + p * CH_TILE_ROWS, from + begin + p * q->a.step,
             (size_t)least(rows - begin, CH_TILE_ROWS) * sizeof(float));
}

/* Writes a tile that is not whole. */
static void write_part(const problem *q, const float *tile, float *c, int64_t rows, int64_t columns, int add) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t l = 0; l < columns; l++) {
      float value = q->alpha * tile[r * CH_TILE_COLUMNS + l], *at = c + r * q->ldc + l;
      *at = add ? *at + value : value;
    }
}

/* Writes the transpose of a tile: `rows` floats of each column. */
CH_TILE_INLINE void write_columns(const problem *q, const float *tile, float *c, int64_t rows, int64_t columns,
                                  int add) {
  for (int64_t l = 0; l < columns; l++, c += q->ldc)
#pragma GCC unroll 6
    for (int64_t r = 0; r < rows; r++) {
      float value = q->alpha * tile[r * CH_TILE_COLUMNS + l];
      c[r] = add ? c[r] + value : value;
    }
}

static void write_transposed(const problem *q, const float *tile, float *c, int64_t rows, int64_t columns, int add) {
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
CH_TILE_INLINE void tile(const problem *q, const task *t, int rows, int copying) {
  ch_vector sum[CH_TILE_ROWS][CH_TILE_VECTORS];
  ch_right b = {t->b.at, copying ? t->b.step : CH_TILE_COLUMNS, copying ? t->b.copy : NULL};
  float *c = q->c_transposed ? q->c + t->j * q->ldc + t->i : q->c + t->i * q->ldc + t->j;
  int64_t columns = least(q->n - t->j, CH_TILE_COLUMNS);
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
      if (t->add) value += ch_load(c + v * CH_LANES);
      if (streams)
        ch_store_past(c + v * CH_LANES, value);
      else
        ch_store(c + v * CH_LANES, value);
    }
}

static void run(const problem *q, const task *t, int64_t rows) {
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
  float *packed; /* the left operand, where it must be packed; or NULL */
} block;

/* The left operand of the tile at row i. */
static ch_left left_of(const problem *q, const block *b, int64_t i) {
  if (b->packed) return (ch_left){b->packed + (i - b->begin) / CH_TILE_ROWS * group_size(b->depth), 1, CH_TILE_ROWS};
  return (ch_left){q->a.at + i * q->a.row + b->first * q->a.step, q->a.row, q->a.step};
}

/* Panel after panel, every row with each: for a B that is larger than A. The first tile packs the panel as it goes; all
 * fetch the next one, some rows each until it is there. */
static void panels_outer(const problem *q, const block *b, float *panel) {
  for (int64_t j = 0; j < q->n; j += CH_TILE_COLUMNS) {
    const float *source = q->b + b->first * q->ldb + j;
    int packs = q->b_transposed || j + CH_TILE_COLUMNS > q->n || b->end - b->begin < CH_TILE_ROWS;
    int fetches = !q->b_transposed && j + 2 * CH_TILE_COLUMNS <= q->n;
    if (packs) pack_panel(q, j, b->first, b->depth, panel);
    for (int64_t i = b->begin, turn = 0; i < b->end; i += CH_TILE_ROWS, turn++) {
      task t = {i, j, b->depth, left_of(q, b, i), {panel, CH_TILE_COLUMNS, NULL}, {panel, 0}, b->add};
      if (!packs && i == b->begin) t.b = (ch_right){source, q->ldb, panel};
      int64_t fetched = turn * (b->depth / CH_TILE_FETCH);
      if (fetches && fetched < b->depth) t.ahead = (ch_ahead){source + CH_TILE_COLUMNS + fetched * q->ldb, q->ldb};
      run(q, &t, b->end - i);
    }
  }
}

/* Row after row with all panels: for an A that is larger than B. */
static void rows_outer(const problem *q, const block *b, float *panels) {
  for (int64_t j = 0; j < q->n; j += CH_TILE_COLUMNS) pack_panel(q, j, b->first, b->depth, panels + j * b->depth);
  for (int64_t i = b->begin; i < b->end; i += CH_TILE_ROWS)
    for (int64_t j = 0; j < q->n; j += CH_TILE_COLUMNS) {
      const float *panel = panels + j * b->depth;
      task t = {i, j, b->depth, left_of(q, b, i), {panel, CH_TILE_COLUMNS, NULL}, {panel, 0}, b->add};
      if (!j && b->depth == q->a.row) t.ahead = (ch_ahead){t.a.at + CH_TILE_ROWS * q->a.row, CH_TILE_COLUMNS};
      run(q, &t, b->end - i);
    }
}

/* The depth in equal slices, none deeper than `most`. */
static int64_t slice_depth(int64_t depth, int64_t most) {
  return depth <= most ? depth : round_up(ceil_div(depth, ceil_div(depth, most)), DEPTH_STEP);
}

void CH_SIMD(ch_product_float)(const ch_product *p, float *scratch) {
  problem q = roles(p);
  int packs = q.a.step != 1;
  int64_t step = slice_depth(q.k, q.c_transposed ? most_depth(q.n) : DEPTH), rows = q.m;
  if (packs) rows = (ROOM - CH_TILE_COLUMNS * step) / group_size(step) * CH_TILE_ROWS;
  for (int64_t first = 0; first < q.k; first += step)
    for (int64_t i = 0; i < q.m; i += rows) {
      block b = {i, least(i + rows, q.m), first, least(step, q.k - first), q.add || first > 0, NULL};
      if (packs) {
        b.packed = scratch + b.depth * CH_TILE_COLUMNS;
        pack_left(&q, i, b.end - i, first, b.depth, b.packed);
      }
      (q.c_transposed ? rows_outer : panels_outer)(&q, &b, scratch);
    }
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
