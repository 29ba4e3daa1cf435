/* Products of bf16 on one thread by AMX's tiles. A square of 32 x 32 sums stays in tiles for a slice of the depth. The
 * left operand is read in place if its rows are contiguous; otherwise, and at its edges, it is packed once per block of
 * rows. The right operand is packed panel by panel; every panel is multiplied with all rows of the block while the next
 * panel is prefetched. If the right operand is smaller and both have contiguous rows, the operands are swapped, so that
 * weights are read in place. Packing costs about as much as a square of 32 rows, so the larger operand is packed as
 * rarely as possible. */
#include "cpu/simd/amx_pack.h"
#include "cpu/simd/product.h"
#include "cpu/simd/write.h"

enum { GROUP = 2 * CH_AMX_EDGE }; /* columns packed together: whole cache lines */

typedef struct {
  ch_problem q; /* the output, and the depth in pairs; operands are in a and b */
  ch_amx_operand a, b;
} amx_work;

/* A slice of the depth: `steps` steps from element `first` on. */
typedef struct {
  int64_t first, steps;
  int add;
} slice;

/* Max depth of a slice, in pairs, such that panels of all columns and a block of packed rows fit the scratch. */
static int64_t max_depth(int64_t columns) {
  return ch_min(CH_PRODUCT_BUFFER / ch_round_up(columns, CH_AMX_EDGE), CH_PRODUCT_MORE / CH_AMX_EDGE) / CH_AMX_PAIRS *
         CH_AMX_PAIRS;
}

static amx_work roles(const ch_product *p) {
  amx_work w = {.q = {.m = p->m, .n = p->n, .k = ch_ceil_div(p->k, 2), .factors = CH_PAIRS, .add = p->accumulate},
                .a = {p->a, p->lda, p->m, p->k, !p->trans_a},
                .b = {p->b, p->ldb, p->n, p->k, p->trans_b}};
  w.q.c = p->c, w.q.ldc = p->ldc, w.q.alpha = p->alpha;
  w.q.streams = p->large && w.q.k <= CH_PRODUCT_DEPTH && ch_write_aligned(p->c, p->ldc);
  if (!ch_better_swapped(p, w.q.k, max_depth(p->m))) return w;
  ch_amx_operand a = w.a;
  w.a = w.b, w.b = a;
  w.q.m = p->n, w.q.n = p->m, w.q.c_transposed = 1;
  return w;
}

/* ---- one square ---- */

/* Writes a square that ch_amx_store cannot write to C directly. */
static void write_square(const ch_problem *q, int64_t i, int64_t j, const float *sum, int add) {
  float turned[CH_AMX_EDGE * CH_AMX_EDGE];
  int64_t rows = ch_min(q->m - i, CH_AMX_EDGE), columns = ch_min(q->n - j, CH_AMX_EDGE), swap = rows;
  float *c = q->c + i * q->ldc + j;
  if (q->c_transposed) {
    ch_transpose(ch_round_up(rows, CH_AMX_ROWS), columns, sum, CH_AMX_EDGE, turned, CH_AMX_EDGE);
    rows = columns, columns = swap, sum = turned;
    c = q->c + j * q->ldc + i;
  }
  if (columns < CH_AMX_EDGE) {
    ch_write_part(q, sum, CH_AMX_EDGE, c, rows, columns, add);
    return;
  }
  for (int64_t r = 0; r < rows; r++, c += q->ldc, sum += CH_AMX_EDGE)
    for (int v = 0; v < CH_AMX_EDGE; v += CH_LANES)
      ch_write_vector(q, ch_load(sum + v), c + v, add, q->streams && !add);
}

/* Prefetches the output, because store misses would stall the next square. */
CH_TILE_INLINE void fetch_square(const float *c, int64_t ldc) {
  for (int r = 0; r < CH_AMX_EDGE; r++, c += ldc)
    for (int v = 0; v < CH_AMX_EDGE; v += CH_AMX_ROWS) __builtin_prefetch(c + v, 1);
}

CH_TILE_INLINE void square(const amx_work *w, const slice *s, int64_t i, int64_t j, const ch_amx_left *a,
                           const float *panel, ch_amx_ahead *ahead, int tall, int wide, int packed) {
  const ch_problem *q = &w->q;
  int whole = i + CH_AMX_EDGE <= q->m && j + CH_AMX_EDGE <= q->n;
  if (whole && !q->streams && !q->c_transposed) fetch_square(q->c + i * q->ldc + j, q->ldc);
  ch_amx_steps(tall, wide, packed, s->steps, a, panel, ahead);
  if (whole && !s->add && q->alpha == 1 && !q->streams && !q->c_transposed) {
    ch_amx_store(1, 1, q->c + i * q->ldc + j, q->ldc);
    return;
  }
  float sum[CH_AMX_EDGE * CH_AMX_EDGE] __attribute__((aligned(64)));
  ch_amx_store(tall, wide, sum, CH_AMX_EDGE);
  write_square(q, i, j, sum, s->add);
}

CH_TILE_INLINE void square_of(const amx_work *w, const slice *s, int64_t i, int64_t j, const ch_amx_left *a,
                              const float *panel, ch_amx_ahead *ahead, int packed) {
  int tall = w->q.m - i > CH_AMX_ROWS, wide = w->q.n - j > CH_AMX_ROWS;
  if (tall && wide)
    square(w, s, i, j, a, panel, ahead, 1, 1, packed);
  else if (tall)
    square(w, s, i, j, a, panel, ahead, 1, 0, packed);
  else if (wide)
    square(w, s, i, j, a, panel, ahead, 0, 1, packed);
  else
    square(w, s, i, j, a, panel, ahead, 0, 0, packed);
}

static void run_square(const amx_work *w, const slice *s, int64_t i, int64_t j, const ch_amx_left *a,
                       const float *panel, ch_amx_ahead *ahead) {
  if (a->row == CH_AMX_PAIRS * sizeof(float))
    square_of(w, s, i, j, a, panel, ahead, 1);
  else
    square_of(w, s, i, j, a, panel, ahead, 0);
}

/* ---- operands ---- */

/* Number of rows of A, from 0 on, that tiles read in place: whole tiles, if the slice consists of whole steps. */
static int64_t rows_in_place(const amx_work *w, const slice *s) {
  if (!w->a.along || s->first + 2 * CH_AMX_PAIRS * s->steps > w->a.depth) return 0;
  return w->q.m % CH_AMX_EDGE == CH_AMX_ROWS ? w->q.m : w->q.m / CH_AMX_EDGE * CH_AMX_EDGE;
}

/* Packs rows begin .. end-1, one step at a time, so that a column-major A is read in memory order. */
static void pack_rows(const amx_work *w, const slice *s, int64_t begin, int64_t end, float *packed) {
  for (int64_t p = 0; p < s->steps; p++)
    for (int64_t i = begin; i < end; i += CH_AMX_EDGE)
      ch_amx_pack(&w->a, i, s->first + p * 2 * CH_AMX_PAIRS, 1,
                  packed + ((i - begin) / CH_AMX_EDGE * s->steps + p) * CH_AMX_BLOCK);
}

/* Packs columns begin .. end-1 into panels of 32. */
static void pack_columns(const amx_work *w, const slice *s, int64_t begin, int64_t end, float *panels) {
  for (int64_t p = 0; p < s->steps; p++)
    for (int64_t j = begin; j < end; j += CH_AMX_EDGE)
      ch_amx_pack(&w->b, j, s->first + p * 2 * CH_AMX_PAIRS, 0,
                  panels + ((j - begin) / CH_AMX_EDGE * s->steps + p) * CH_AMX_BLOCK);
}

/* The left operand of a square at row i: in place, or packed from `packed` on. */
static ch_amx_left left_at(const amx_work *w, const slice *s, int64_t i, const float *packed) {
  const int64_t size = sizeof(ch_bf16), block = CH_AMX_BLOCK * sizeof(float);
  if (packed) return (ch_amx_left){(const char *)packed, block / CH_AMX_EDGE, block, block / 2};
  return (ch_amx_left){(const char *)(w->a.at + i * w->a.ld + s->first), w->a.ld * size, 2 * CH_AMX_PAIRS * size,
                       CH_AMX_ROWS * w->a.ld * size};
}

/* Plans the prefetch of `count` lines (rows or columns) of an operand from `line` on, for this slice, spread over
 * `squares` squares. */
static ch_amx_ahead plan_prefetch(const ch_amx_operand *o, const slice *s, int64_t line, int64_t count,
                                  int64_t squares) {
  const int64_t deep = ch_min(2 * CH_AMX_PAIRS * s->steps, o->depth - s->first), size = sizeof(ch_bf16);
  int64_t rows = o->along ? count : deep, lines = ch_ceil_div((o->along ? deep : count) * size, 64);
  int64_t at = o->along ? line * o->ld + s->first : s->first * o->ld + line;
  ch_amx_ahead f = {.at = (const char *)(o->at + at), .row = o->ld * size, .lines = lines, .left = rows * lines};
  f.each = ch_ceil_div(f.left, squares * s->steps);
  return f;
}

/* ---- loops ---- */

/* Multiplies rows begin .. end-1 with all columns, a group of panels at a time. `packed` holds the rows from `place`
 * on. */
static void panels_outer(const amx_work *w, const slice *s, int64_t begin, int64_t end, int64_t place,
                         const float *packed, float *panels) {
  int64_t n = w->q.n, squares = ch_ceil_div(end - begin, CH_AMX_EDGE) * (GROUP / CH_AMX_EDGE);
  for (int64_t group = 0; group < n; group += GROUP) {
    ch_amx_ahead ahead = {0};
    if (group + 2 * GROUP <= n) ahead = plan_prefetch(&w->b, s, group + GROUP, GROUP, squares);
    pack_columns(w, s, group, ch_min(group + GROUP, n), panels);
    for (int64_t j = group; j < ch_min(group + GROUP, n); j += CH_AMX_EDGE)
      for (int64_t i = begin; i < end; i += CH_AMX_EDGE) {
        const float *rows = i < place ? NULL : packed + (i - place) * s->steps * CH_AMX_PAIRS;
        ch_amx_left a = left_at(w, s, i, rows);
        run_square(w, s, i, j, &a, panels + (j - group) * s->steps * CH_AMX_PAIRS, &ahead);
      }
  }
}

/* Computes a slice in blocks of rows that fit the scratch, packed or not; a panel stays in the cache for all rows of a
 * block. */
static void blocks(const amx_work *w, const slice *s, float *scratch) {
  int64_t m = w->q.m, place = rows_in_place(w, s), depth = s->steps * CH_AMX_PAIRS;
  float *packed = scratch + GROUP * depth;
  int64_t rows = (CH_PRODUCT_BUFFER - GROUP * depth) / depth / CH_AMX_EDGE * CH_AMX_EDGE;
  for (int64_t begin = 0; begin < m; begin += rows) {
    int64_t end = ch_min(begin + rows, m), from = begin > place ? begin : place;
    pack_rows(w, s, from, end, packed);
    panels_outer(w, s, begin, end, from, packed, scratch);
  }
}

/* Computes a slice whose panels are all packed in `scratch`: loops over blocks of 32 rows outside and panels inside. */
static void rows_outer(const amx_work *w, const slice *s, float *scratch) {
  int64_t m = w->q.m, n = w->q.n, place = rows_in_place(w, s), squares = ch_ceil_div(n, CH_AMX_EDGE);
  float *packed = scratch + CH_PRODUCT_BUFFER;
  pack_columns(w, s, 0, n, scratch);
  for (int64_t i = 0; i < m; i += CH_AMX_EDGE) {
    int64_t next = i + CH_AMX_EDGE;
    ch_amx_ahead ahead = {0};
    if (next < place) ahead = plan_prefetch(&w->a, s, next, ch_min(CH_AMX_EDGE, place - next), squares);
    if (i >= place) pack_rows(w, s, i, ch_min(next, m), packed);
    ch_amx_left a = left_at(w, s, i, i < place ? NULL : packed);
    for (int64_t j = 0; j < n; j += CH_AMX_EDGE)
      run_square(w, s, i, j, &a, scratch + j * s->steps * CH_AMX_PAIRS, &ahead);
  }
}

void CH_SIMD(ch_product_own)(const ch_product *p, float *scratch) {
  amx_work w = roles(p);
  int64_t depth = ch_product_slice(w.q.k, w.q.c_transposed ? max_depth(w.q.n) : CH_PRODUCT_DEPTH);
  ch_amx_begin();
  for (int64_t first = 0; first < w.q.k; first += depth) {
    slice s = {2 * first, ch_ceil_div(ch_min(depth, w.q.k - first), CH_AMX_PAIRS), w.q.add || first > 0};
    (w.q.c_transposed ? rows_outer : blocks)(&w, &s, scratch);
  }
  ch_amx_end();
  if (w.q.streams) ch_store_past_end();
}
