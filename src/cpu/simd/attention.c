/* Attention's five products are too small for a library's: calls, packing and what a causal mask throws away cost
 * as much as arithmetic. Here operands of one head are packed once, so that every product is sum_p a[r,p] B[p,:] with
 * rows of B contiguous, and runs in tiles of ROWS x COLUMNS held in registers; tiles that the mask hides are left out.
 * Products are cut into blocks of rows by chunks of keys, so that B stays in the nearest cache for all rows of a block.
 */
#include "cpu/simd/attention.h"

#include <string.h>

#include "cpu/simd/rows.h"
#include "cpu/simd/tile.h"
#include "cpu/simd/transpose.h"

/* Rows of a tile: with two vectors each, as many accumulators as hide latency and leave registers for operands. */
enum { ROWS = CH_LANES == 16 ? 8 : 4, COLUMNS = 2 * CH_LANES, CHUNK = CH_ATTENTION_CHUNK, LD = CH_ATTENTION_LD };

/* c[ROWS, vectors * CH_LANES] (+)= sum over p < count of a[r,p] b[p,:]. Its loop is plainer than ch_tile_step's, with
 * which T=128, d_head=32 took 4 % longer. */
CH_TILE_INLINE void tile(int vectors, int count, ch_left a, const float *b, int64_t ldb, float *c, int64_t ldc,
                         int add) {
  ch_vector sum[ROWS][2];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++) sum[r][v] = add ? ch_load(c + r * ldc + v * CH_LANES) : (ch_vector){0};
  for (int p = 0; p < count; p++) {
    ch_vector right[2];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++) right[v] = ch_load(b + v * CH_LANES);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; v++) sum[r][v] += a.at[r * a.row] * right[v];
    a.at += a.step;
    b += ldb;
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++) ch_store(c + r * ldc + v * CH_LANES, sum[r][v]);
}

/* A right operand: step p, column j stands at p * step + j in row-major arrays; in panels of COLUMNS columns, of
 * which each is contiguous, column j's panel begins at j * column. */
typedef struct {
  const float *at;
  int64_t step, column;
} right;

/* A row of tiles: `width` columns, rounded up to whole vectors. */
static void tiles(int count, ch_left a, right b, float *c, int64_t ldc, int width, int add) {
  int j = 0;
  for (; width - j > CH_LANES; j += COLUMNS) tile(2, count, a, b.at + j * b.column, b.step, c + j, ldc, add);
  if (j < width) tile(1, count, a, b.at + j * b.column, b.step, c + j, ldc, add);
}

/* y[r,:] = factor x[r,:] for r < rows, padded with zeros to [most,width]. */
static void pack_rows(const ch_attention_head *h, const float *x, int rows, int most, float factor, float *y,
                      int64_t width) {
  for (int r = 0; r < most; r++) {
    int filled = r < rows ? h->dh : 0;
    for (int c = 0; c < filled; c++) y[r * width + c] = factor * x[r * h->ld + c];
    for (int64_t c = filled; c < width; c++) y[r * width + c] = 0;
  }
}

/* The transpose of x[rows,dh] in panels of [dh,COLUMNS], the last one padded with zeros. */
static void pack_panels(const ch_attention_head *h, const float *x, int rows, float *y) {
  for (int j = 0; j < rows; j += COLUMNS, y += COLUMNS * h->dh) {
    int filled = rows - j < COLUMNS ? rows - j : COLUMNS;
    ch_transpose(filled, h->dh, x + j * h->ld, h->ld, y, COLUMNS);
    for (int c = 0; c < h->dh; c++)
      for (int l = filled; l < COLUMNS; l++) y[c * COLUMNS + l] = 0;
  }
}

static right panels(const ch_attention_head *h, const float *at) { return (right){at, COLUMNS, h->dh}; }

/* y[r,:] = factor x[r,:], back to the caller's layout. */
static void unpack_row(const ch_attention_head *h, const float *x, float factor, float *y) {
  for (int c = 0; c < h->dh; c++) y[c] = factor * x[c];
}

static int least(int a, int b) { return a < b ? a : b; }

/* The next `count` floats of the scratch. */
static float *take(float **work, int64_t count) {
  float *taken = *work;
  *work += count;
  return taken;
}

/* How many of the keys from `key` on, at most CHUNK, are seen by any of the positions below `end`. */
static int in_chunk(int key, int end) { return least(end - key, CHUNK); }

/* Fetches positions first .. first+ROWS-1 of x while something else is computed: what is packed next and written next
 * stands in short pieces, each in a page of its own, which the processor does not foresee. */
static void fetch(const ch_attention_head *h, const float *x, int first) {
  enum { LINE = 16 };
  for (int r = first; r < least(first + ROWS, h->T); r++)
    for (int c = 0; c < h->dh; c += LINE) __builtin_prefetch(x + r * h->ld + c, 0, 2);
}

/* Where forward works. */
typedef struct {
  float *kt, *v;      /* packed, of the whole head */
  float *s, *q, *out; /* of a block of rows */
  int64_t ld, width;  /* of s; of the others */
} forward;

static void pack_keys(const ch_attention_head *h, const forward *f, int begin, int count) {
  pack_panels(h, h->k + begin * h->ld, count, f->kt + begin * h->dh);
  pack_rows(h, h->v + begin * h->ld, count, count, 1, f->v + begin * f->width, f->width);
}

/* Rows first .. first+rows-1, at most CH_ATTENTION_FORWARD_ROWS. */
static void forward_block(const ch_attention_head *h, const forward *f, int first, int rows) {
  int64_t ld = f->ld, width = f->width;
  int end = first + rows;
  float inverse[CH_ATTENTION_FORWARD_ROWS];
  ch_causal_block block = {rows, first, h->T, ld, h->bias};
  pack_rows(h, h->q + first * h->ld, rows, CH_ATTENTION_FORWARD_ROWS, h->scale, f->q, width);
  for (int key = 0; key < end; key += CHUNK)
    for (int r = 0; r < rows; r += ROWS) {
      if (!key) fetch(h, h->q, end + r), fetch(h, h->k, end + r);
      tiles(h->dh, (ch_left){f->q + r * width, width, 1}, panels(h, f->kt + key * h->dh), f->s + r * ld + key, ld,
            in_chunk(key, first + r + ROWS), 0);
    }
  CH_SIMD(ch_causal_softmax)(&block, f->s, inverse, h->lse + first);
  for (int key = 0; key < end; key += CHUNK)
    for (int r = 0; r < rows; r += ROWS) {
      if (!key) fetch(h, h->v, end + r), fetch(h, h->out, first + r);
      int count = in_chunk(key, least(first + r + ROWS, end));
      tiles(count, (ch_left){f->s + r * ld + key, ld, 1}, (right){f->v + key * width, width, 1}, f->out + r * width,
            width, h->dh, key > 0);
    }
  for (int r = 0; r < rows; r++) unpack_row(h, f->out + r * width, inverse[r], h->out + (first + r) * h->ld);
}

void CH_SIMD(ch_attention_forward)(const ch_attention_head *h, int begin, int end) {
  enum { BLOCK = CH_ATTENTION_FORWARD_ROWS };
  forward f = {.ld = ch_attention_stride(h->T), .width = ch_attention_width(h->dh)};
  int64_t whole = ch_attention_keys(h->T) * f.width;
  float *work = h->work;
  f.kt = take(&work, whole), f.v = take(&work, whole), f.s = take(&work, BLOCK * f.ld);
  f.q = take(&work, BLOCK * f.width), f.out = take(&work, BLOCK * f.width);
  pack_keys(h, &f, 0, begin);
  for (int first = begin; first < end; first += BLOCK) {
    int rows = least(BLOCK, end - first);
    pack_keys(h, &f, first, rows);
    forward_block(h, &f, first, rows);
  }
}

/* Where backward works: chunk after chunk of keys, and for each of them through the blocks of rows that see it. */
typedef struct {
  float *q, *dout, *dq;         /* [T,width], packed, q times scale */
  float *delta;                 /* [T] */
  float *kt, *vt, *k, *dk, *dv; /* [CHUNK,width], kt and vt in panels */
  float *s, *dp;                /* [BLOCK,LD]: scores of a block for the chunk, then P and dS */
  int64_t width;
} backward;

enum { BLOCK = CH_ATTENTION_CHUNK };

static backward begin_backward(const ch_attention_head *h) {
  backward p = {.width = ch_attention_width(h->dh)};
  float *work = h->work;
  int64_t positions = ch_attention_keys(h->T), whole = positions * p.width, part = CHUNK * p.width;
  p.q = take(&work, whole), p.dout = take(&work, whole), p.dq = take(&work, whole), p.delta = take(&work, positions);
  p.kt = take(&work, part), p.vt = take(&work, part), p.k = take(&work, part);
  p.dk = take(&work, part), p.dv = take(&work, part);
  p.s = take(&work, BLOCK * LD), p.dp = take(&work, BLOCK * LD);
  memset(h->dbias, 0, (size_t)(h->T + CH_CAUSAL_PAD) * sizeof(float));
  return p;
}

/* <dout, out> of row r: what softmax's backward subtracts. */
static float row_delta(const ch_attention_head *h, const float *dout, int r) {
  const float *out = h->out + r * h->ld;
  ch_vector lanes = {0};
  int c = 0;
  for (; c + CH_LANES <= h->dh; c += CH_LANES) lanes += ch_load(dout + c) * ch_load(out + c);
  float delta = ch_vector_sum(lanes);
  for (; c < h->dh; c++) delta += dout[c] * out[c];
  return delta;
}

static void pack_block(const ch_attention_head *h, const backward *p, int first, int rows) {
  int64_t to = first * p->width;
  pack_rows(h, h->q + first * h->ld, rows, BLOCK, h->scale, p->q + to, p->width);
  pack_rows(h, h->dout + first * h->ld, rows, BLOCK, 1, p->dout + to, p->width);
  for (int r = first; r < first + rows; r++) p->delta[r] = row_delta(h, p->dout + r * p->width, r);
}

/* P and dS of the block's rows for the chunk, which add to dbias. */
static void chunk_scores(const ch_attention_head *h, const backward *p, int first, int rows, int key) {
  ch_causal_block block = {rows, first, h->T, LD, h->bias};
  for (int r = 0; r < rows; r += ROWS) {
    int seen = in_chunk(key, first + r + ROWS);
    int64_t row = (first + r) * p->width;
    if (!key) fetch(h, h->q, first + BLOCK + r), fetch(h, h->dout, first + BLOCK + r);
    tiles(h->dh, (ch_left){p->q + row, p->width, 1}, panels(h, p->kt), p->s + r * LD, LD, seen, 0);
    tiles(h->dh, (ch_left){p->dout + row, p->width, 1}, panels(h, p->vt), p->dp + r * LD, LD, seen, 0);
  }
  CH_SIMD(ch_causal_backward)(&block, key, p->s, p->dp, h->lse + first, p->delta + first, h->dbias);
}

/* What P and dS add to dq, dk and dv. */
static void chunk_gradients(const ch_attention_head *h, const backward *p, int first, int rows, int key) {
  int end = first + rows;
  int64_t width = p->width;
  for (int r = 0; r < rows; r += ROWS) {
    if (!key) fetch(h, h->out, first + BLOCK + r);
    if (first == key) fetch(h, h->dq, first + r);
    tiles(in_chunk(key, least(first + r + ROWS, end)), (ch_left){p->dp + r * LD, LD, 1}, (right){p->k, width, 1},
          p->dq + (first + r) * width, width, h->dh, key > 0);
  }
  for (int j = 0; j < in_chunk(key, end); j += ROWS) {
    int skip = key + j > first ? key + j - first : 0, add = first > key; /* rows before a key do not see it */
    int64_t from = (first + skip) * width;
    ch_left probability = {p->s + skip * LD + j, 1, LD}, ds = {p->dp + skip * LD + j, 1, LD};
    if (first == key) fetch(h, h->dk, key + j), fetch(h, h->dv, key + j);
    if (first == key) fetch(h, h->k, key + CHUNK + j), fetch(h, h->v, key + CHUNK + j);
    tiles(rows - skip, probability, (right){p->dout + from, width, 1}, p->dv + j * width, width, h->dh, add);
    tiles(rows - skip, ds, (right){p->q + from, width, 1}, p->dk + j * width, width, h->dh, add);
  }
}

/* Gradients of the chunk's positions: no later chunk adds to them. */
static void unpack_chunk(const ch_attention_head *h, const backward *p, int key, int keys) {
  for (int j = 0; j < keys; j++) {
    int64_t to = (key + j) * h->ld;
    unpack_row(h, p->dq + (key + j) * p->width, h->scale, h->dq + to);
    unpack_row(h, p->dk + j * p->width, 1, h->dk + to);
    unpack_row(h, p->dv + j * p->width, 1, h->dv + to);
  }
}

void CH_SIMD(ch_attention_backward)(const ch_attention_head *h) {
  backward p = begin_backward(h);
  for (int key = 0; key < h->T; key += CHUNK) {
    int keys = least(CHUNK, h->T - key);
    pack_panels(h, h->k + key * h->ld, keys, p.kt);
    pack_panels(h, h->v + key * h->ld, keys, p.vt);
    pack_rows(h, h->k + key * h->ld, keys, keys, 1, p.k, p.width);
    for (int first = key; first < h->T; first += BLOCK) {
      int rows = least(BLOCK, h->T - first);
      if (!key) pack_block(h, &p, first, rows);
      chunk_scores(h, &p, first, rows, key);
      chunk_gradients(h, &p, first, rows, key);
    }
    unpack_chunk(h, &p, key, keys);
  }
}
