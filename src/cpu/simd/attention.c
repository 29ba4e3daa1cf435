/* Attention's five products are too small for a library's: calls, packing and what a causal mask throws away cost
 * as much as arithmetic. Here operands of one head are packed once, so that every product is sum_p a[r,p] B[p,:] with
 * rows of B contiguous, and runs in tiles of ROWS x COLUMNS held in registers; tiles that the mask hides are left out.
 */
#include "cpu/simd/attention.h"

#include <string.h>

#include "cpu/simd/rows.h"
#include "cpu/simd/tile.h"
#include "cpu/simd/transpose.h"

/* Rows of a tile: with two vectors each, as many accumulators as hide latency and leave registers for operands. */
enum { ROWS = CH_LANES == 16 ? 8 : 4, COLUMNS = 2 * CH_LANES, BLOCK = CH_ATTENTION_ROWS };

/* c[ROWS,COLUMNS] (+)= sum over p < count of a[r,p] b[p,:]. Its loop is plainer than ch_tile_step's, with which T=128,
 * d_head=32 took 4 % longer. */
static inline void tile(int count, ch_left a, const float *b, int64_t ldb, float *c, int64_t ldc, int add) {
  ch_vector sum[ROWS][2];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) sum[r][v] = add ? ch_load(c + r * ldc + v * CH_LANES) : (ch_vector){0};
  for (int p = 0; p < count; p++) {
    ch_vector b0 = ch_load(b), b1 = ch_load(b + CH_LANES);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      sum[r][0] += a.at[r * a.row] * b0;
      sum[r][1] += a.at[r * a.row] * b1;
    }
    a.at += a.step;
    b += ldb;
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) ch_store(c + r * ldc + v * CH_LANES, sum[r][v]);
}

/* A right operand: step p, column j stands at p * step + j in row-major arrays; in panels of COLUMNS columns, of
 * which each is contiguous, column j's panel begins at j * column. */
typedef struct {
  const float *at;
  int64_t step, column;
} right;

/* A row of tiles: `width` columns, rounded up to whole tiles. */
static void tiles(int count, ch_left a, right b, float *c, int64_t ldc, int width, int add) {
  for (int j = 0; j < width; j += COLUMNS) tile(count, a, b.at + j * b.column, b.step, c + j, ldc, add);
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

/* Rows first .. first+rows-1, at most ROWS. */
static void forward_rows(const ch_attention_head *h, int first, int rows, const float *kt, const float *v, float *s,
                         float *q, float *out) {
  int64_t ld = ch_attention_stride(h->T), width = ch_attention_padded(h->dh);
  float inverse[ROWS];
  ch_causal_block block = {rows, first, h->T, ld, h->bias};
  pack_rows(h, h->q + first * h->ld, rows, ROWS, h->scale, q, width);
  tiles(h->dh, (ch_left){q, width, 1}, panels(h, kt), s, ld, first + rows, 0);
  CH_SIMD(ch_causal_softmax)(&block, s, inverse, h->lse + first);
  tiles(first + rows, (ch_left){s, ld, 1}, (right){v, width, 1}, out, width, h->dh, 0);
  for (int r = 0; r < rows; r++) unpack_row(h, out + r * width, inverse[r], h->out + (first + r) * h->ld);
}

void CH_SIMD(ch_attention_forward)(const ch_attention_head *h, int begin, int end) {
  int64_t keys = ch_attention_padded(h->T), width = ch_attention_padded(h->dh);
  float *work = h->work, *kt = take(&work, keys * width), *v = take(&work, keys * width),
        *s = take(&work, ROWS * ch_attention_stride(h->T));
  float *q = take(&work, ROWS * width), *out = take(&work, ROWS * width);
  pack_panels(h, h->k, end, kt);
  pack_rows(h, h->v, end, end, 1, v, width);
  for (int first = begin; first < end; first += ROWS)
    forward_rows(h, first, least(ROWS, end - first), kt, v, s, q, out);
}

/* What backward keeps of a head, packed, and of the block of rows at hand. */
typedef struct {
  float *kt, *vt;       /* panels */
  float *k, *dk, *dv;   /* [T,width] */
  float *s, *dp;        /* [BLOCK,ld]: scores, then P and dS */
  float *q, *dout, *dq; /* [BLOCK,width], q times scale */
  float *delta;         /* [BLOCK] */
  int64_t ld, width;
} packed;

static packed pack_head(const ch_attention_head *h) {
  packed p = {.ld = ch_attention_stride(h->T), .width = ch_attention_padded(h->dh)};
  float *work = h->work;
  int64_t whole = ch_attention_padded(h->T) * p.width;
  p.kt = take(&work, whole), p.vt = take(&work, whole), p.k = take(&work, whole);
  p.dk = take(&work, whole), p.dv = take(&work, whole);
  p.s = take(&work, BLOCK * p.ld), p.dp = take(&work, BLOCK * p.ld);
  p.q = take(&work, BLOCK * p.width), p.dout = take(&work, BLOCK * p.width), p.dq = take(&work, BLOCK * p.width);
  p.delta = take(&work, BLOCK);
  pack_panels(h, h->k, h->T, p.kt);
  pack_panels(h, h->v, h->T, p.vt);
  pack_rows(h, h->k, h->T, h->T, 1, p.k, p.width);
  memset(p.dk, 0, (size_t)whole * sizeof(float));
  memset(p.dv, 0, (size_t)whole * sizeof(float));
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

/* P and dS of the block, which add to dbias. */
static void block_scores(const ch_attention_head *h, const packed *p, int first, int rows) {
  ch_causal_block block = {rows, first, h->T, p->ld, h->bias};
  for (int r = 0; r < rows; r += ROWS) {
    int seen = least(first + r + ROWS, h->T);
    ch_left q = {p->q + r * p->width, p->width, 1}, dout = {p->dout + r * p->width, p->width, 1};
    tiles(h->dh, q, panels(h, p->kt), p->s + r * p->ld, p->ld, seen, 0);
    tiles(h->dh, dout, panels(h, p->vt), p->dp + r * p->ld, p->ld, seen, 0);
  }
  for (int r = 0; r < rows; r++) p->delta[r] = row_delta(h, p->dout + r * p->width, first + r);
  CH_SIMD(ch_causal_backward)(&block, p->s, p->dp, h->lse + first, p->delta, h->dbias);
}

/* Rows first .. first+rows-1, at most BLOCK: dq, and what they add to dk, dv and dbias. */
static void backward_block(const ch_attention_head *h, const packed *p, int first, int rows) {
  pack_rows(h, h->q + first * h->ld, rows, BLOCK, h->scale, p->q, p->width);
  pack_rows(h, h->dout + first * h->ld, rows, BLOCK, 1, p->dout, p->width);
  block_scores(h, p, first, rows);
  for (int r = 0; r < rows; r += ROWS)
    tiles(least(first + r + ROWS, first + rows), (ch_left){p->dp + r * p->ld, p->ld, 1}, (right){p->k, p->width, 1},
          p->dq + r * p->width, p->width, h->dh, 0);
  for (int r = 0; r < rows; r++) unpack_row(h, p->dq + r * p->width, h->scale, h->dq + (first + r) * h->ld);
  for (int j = 0; j < first + rows; j += ROWS) {
    int64_t skip = j > first ? j - first : 0, from = skip * p->width,
            to = j * p->width; /* rows before key j do not see it */
    ch_left probability = {p->s + skip * p->ld + j, 1, p->ld}, ds = {p->dp + skip * p->ld + j, 1, p->ld};
    tiles(rows - (int)skip, probability, (right){p->dout + from, p->width, 1}, p->dv + to, p->width, h->dh, 1);
    tiles(rows - (int)skip, ds, (right){p->q + from, p->width, 1}, p->dk + to, p->width, h->dh, 1);
  }
}

void CH_SIMD(ch_attention_backward)(const ch_attention_head *h) {
  packed p = pack_head(h);
  for (int first = 0; first < h->T; first += BLOCK) backward_block(h, &p, first, least(BLOCK, h->T - first));
  for (int j = 0; j < h->T; j++) {
    unpack_row(h, p.dk + j * p.width, 1, h->dk + j * h->ld);
    unpack_row(h, p.dv + j * p.width, 1, h->dv + j * h->ld);
  }
}
