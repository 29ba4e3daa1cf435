/* Attention's five products are too small for a library's GEMM: calls, packing and masked elements would cost as much
 * as the arithmetic. Here the operands of one head are packed once, so that every product is sum_p a[r,p] B[p,:] with
 * contiguous rows of B, computed in tiles of ROWS x COLUMNS in registers; fully masked tiles are skipped. Products are
 * split into blocks of rows by chunks of keys, so that B stays in L1 for all rows of a block. Final results are written
 * from registers to the caller's arrays. */
#include <string.h>

#include "cpu/simd/attention_tile.h"
#include "cpu/simd/rows.h"
#include "cpu/simd/transpose.h"

enum { ROWS = CH_HEAD_ROWS, CHUNK = CH_ATTENTION_CHUNK, LD = CH_ATTENTION_LD };

CH_HEAD_PRODUCTS(16, 16)
CH_HEAD_PRODUCTS(32, 32)
CH_HEAD_PRODUCTS(64, 64)
CH_HEAD_PRODUCTS(any, dh)

/* y[r,:] = factor x[r,:] for r < rows, padded with zeros to [max,width]. */
static inline void pack(const ch_attention_head *h, const float *x, int64_t ld, int rows, int max, float factor,
                        float *y) {
  int64_t width = ch_attention_width(h->dh), dh = h->dh;
  for (int r = 0; r < rows; r++, x += ld, y += width) {
    int c = 0;
    for (; c + CH_LANES <= dh; c += CH_LANES) ch_store(y + c, factor * ch_load(x + c));
    for (; c < dh; c++) y[c] = factor * x[c];
    for (; c < width; c++) y[c] = 0;
  }
  if (rows < max) memset(y, 0, (size_t)((max - rows) * width) * sizeof(float));
}

/* Transposes x[rows,dh] into panels of [dh,CH_HEAD_COLUMNS]; the last panel is padded with zeros. */
static inline void pack_panels(const ch_attention_head *h, const float *x, int64_t ld, int rows, float *y) {
  int dh = h->dh;
  for (int j = 0; j < rows; j += CH_HEAD_COLUMNS, y += CH_HEAD_COLUMNS * dh) {
    int filled = rows - j < CH_HEAD_COLUMNS ? rows - j : CH_HEAD_COLUMNS;
    ch_transpose(filled, dh, x + j * ld, ld, y, CH_HEAD_COLUMNS);
    for (int c = 0; filled < CH_HEAD_COLUMNS && c < dh; c++)
      for (int l = filled; l < CH_HEAD_COLUMNS; l++) y[c * CH_HEAD_COLUMNS + l] = 0;
  }
}

/* Prefetches positions first .. first+CH_HEAD_ROWS-1 of x. The head's rows are short and each is in another page, so
 * the hardware prefetcher misses them. */
static inline void prefetch_rows(const ch_attention_head *h, const float *x, int64_t ld, int first) {
  enum { LINE = 16 };
  for (int r = first; r < first + CH_HEAD_ROWS && r < h->T; r++)
    for (int c = 0; c < h->dh; c += LINE) __builtin_prefetch(x + r * ld + c, 0, 2);
}

static const ch_head_products *products_of(int dh) {
  return dh == 16 ? &products_16 : dh == 32 ? &products_32 : dh == 64 ? &products_64 : &products_any;
}

static int smaller(int a, int b) { return a < b ? a : b; }

/* Allocates `count` floats from the scratch *work. */
static float *take_scratch(float **work, int64_t count) {
  float *block = *work;
  *work += count;
  return block;
}

/* End of the keys visible to any position below `end`. */
static int seen_by(const ch_attention_head *h, int end) { return h->bidirectional ? h->T : end; }

/* Number of visible keys from `key` on, at most CHUNK. */
static int in_chunk(const ch_attention_head *h, int key, int end) { return smaller(seen_by(h, end) - key, CHUNK); }

/* Buffers of forward. */
typedef struct {
  const ch_head_products *run;
  float *kt, *v;     /* packed K^T and V of the whole head */
  float *s, *q;      /* scores, and packed q, of a block of rows */
  int64_t ld, width; /* row lengths of s, and of the other arrays */
} forward;

static void pack_keys(const ch_attention_head *h, const forward *f, int begin, int count) {
  pack_panels(h, h->k + begin * h->kv_ld, h->kv_ld, count, f->kt + begin * h->dh);
  pack(h, h->v + begin * h->kv_ld, h->kv_ld, count, count, 1, f->v + begin * f->width);
}

/* Forward of rows first .. first+rows-1, at most CH_ATTENTION_FORWARD_ROWS. */
static void forward_block(const ch_attention_head *h, const forward *f, int first, int rows) {
  int end = first + rows, seen = seen_by(h, end);
  float inverse[CH_ATTENTION_FORWARD_ROWS];
  ch_scores_block block = {rows, first, h->T, h->bidirectional, f->ld, h->bias};
  pack(h, h->q + first * h->ld, h->ld, rows, CH_ATTENTION_FORWARD_ROWS, h->scale, f->q);
  for (int key = 0; key < seen; key += CHUNK)
    for (int r = 0; r < rows; r += ROWS) {
      if (!key) prefetch_rows(h, h->q, h->ld, end + r), prefetch_rows(h, h->k, h->kv_ld, end + r);
      f->run->scores(h->dh, f->q + r * f->width, f->kt + key * h->dh, f->s + r * f->ld + key, f->ld,
                     in_chunk(h, key, first + r + ROWS));
    }
  CH_SIMD(ch_scores_softmax)(&block, f->s, inverse, h->lse + first);
  for (int r = 0; r < rows; r += ROWS) {
    ch_head_result out = {.to = h->out + (first + r) * h->ld, .ld = h->ld, .rows = rows - r, .factors = inverse + r};
    prefetch_rows(h, h->v, h->kv_ld, end + r), prefetch_rows(h, h->out, h->ld, first + r);
    f->run->weigh(h->dh, smaller(seen_by(h, first + r + ROWS), seen), f->s + r * f->ld, f->ld, f->v, &out);
  }
}

void CH_SIMD(ch_attention_forward)(const ch_attention_head *h, int begin, int end) {
  enum { BLOCK = CH_ATTENTION_FORWARD_ROWS };
  forward f = {products_of(h->dh), .ld = ch_attention_stride(h->T), .width = ch_attention_width(h->dh)};
  int64_t whole = ch_attention_keys(h->T) * f.width;
  float *work = h->work;
  f.kt = take_scratch(&work, whole), f.v = take_scratch(&work, whole), f.s = take_scratch(&work, BLOCK * f.ld);
  f.q = take_scratch(&work, BLOCK * f.width);
  pack_keys(h, &f, 0, h->bidirectional ? h->T : begin);
  for (int first = begin; first < end; first += BLOCK) {
    int rows = smaller(BLOCK, end - first);
    if (!h->bidirectional) pack_keys(h, &f, first, rows);
    forward_block(h, &f, first, rows);
  }
}

/* Buffers of backward, which loops over chunks of keys and, inside, over the blocks of rows that see the chunk. */
typedef struct {
  const ch_head_products *run;
  float *q, *dout, *dq;         /* [T,width], packed, q times scale; dq without the scale */
  float *delta;                 /* [T] */
  float *kt, *vt, *k, *dk, *dv; /* [CHUNK,width], kt and vt in panels */
  float *s, *dp;                /* [BLOCK,LD]: scores of a block for the chunk, then P and dS */
  int64_t width;
} attention_gradients;

enum { BLOCK = CH_ATTENTION_CHUNK };

static attention_gradients begin_backward(const ch_attention_head *h) {
  attention_gradients p = {products_of(h->dh), .width = ch_attention_width(h->dh)};
  float *work = h->work;
  int64_t positions = ch_attention_keys(h->T), whole = positions * p.width, part = CHUNK * p.width;
  p.q = take_scratch(&work, whole), p.dout = take_scratch(&work, whole), p.dq = take_scratch(&work, whole),
  p.delta = take_scratch(&work, positions);
  p.kt = take_scratch(&work, part), p.vt = take_scratch(&work, part), p.k = take_scratch(&work, part);
  p.dk = take_scratch(&work, part), p.dv = take_scratch(&work, part);
  p.s = take_scratch(&work, BLOCK * LD), p.dp = take_scratch(&work, BLOCK * LD);
  memset(h->dbias, 0, (size_t)((h->bidirectional ? 2 * h->T - 1 : h->T) + CH_SCORES_PAD) * sizeof(float));
  return p;
}

/* <dout, out> of row r, which the softmax's backward subtracts. */
static float row_delta(const ch_attention_head *h, const float *dout, int r) {
  const float *out = h->out + r * h->ld;
  ch_vector lanes = {0};
  int c = 0;
  for (; c + CH_LANES <= h->dh; c += CH_LANES) lanes += ch_load(dout + c) * ch_load(out + c);
  float delta = ch_vector_sum(lanes);
  for (; c < h->dh; c++) delta += dout[c] * out[c];
  return delta;
}

static void pack_block(const ch_attention_head *h, const attention_gradients *p, int first, int rows) {
  int64_t to = first * p->width;
  pack(h, h->q + first * h->ld, h->ld, rows, BLOCK, h->scale, p->q + to);
  pack(h, h->dout + first * h->ld, h->ld, rows, BLOCK, 1, p->dout + to);
  for (int r = first; r < first + rows; r++) p->delta[r] = row_delta(h, p->dout + r * p->width, r);
}

/* Computes P and dS [rows,CHUNK] of a block of rows for a chunk of keys, and adds dS to dbias. */
static void chunk_scores(const ch_attention_head *h, const attention_gradients *p, int first, int rows, int key) {
  ch_scores_block block = {rows, first, h->T, h->bidirectional, LD, h->bias};
  for (int r = 0; r < rows; r += ROWS) {
    int seen = in_chunk(h, key, first + r + ROWS);
    int64_t row = (first + r) * p->width;
    if (!key) prefetch_rows(h, h->q, h->ld, first + BLOCK + r), prefetch_rows(h, h->dout, h->ld, first + BLOCK + r);
    p->run->scores(h->dh, p->q + row, p->kt, p->s + r * LD, LD, seen);
    p->run->scores(h->dh, p->dout + row, p->vt, p->dp + r * LD, LD, seen);
  }
  CH_SIMD(ch_scores_backward)(&block, key, p->s, p->dp, h->lse + first, p->delta + first, h->dbias);
}

/* The destination of a gradient: the first product sets `part`, later ones add to it, the last one writes the caller's
 * x[position]. */
static ch_head_result gradient(const ch_attention_head *h, const attention_gradients *p, float *part, float *x,
                               int64_t ld, int position, int begin, int end, float factor) {
  ch_head_result c = {.from = begin ? NULL : part, .from_ld = p->width, .to = part, .ld = p->width};
  if (end) c.to = x + position * ld, c.ld = ld, c.rows = h->T - position, c.factor = factor;
  return c;
}

/* The first row of the first block that sees a chunk of keys. */
static int first_block(const ch_attention_head *h, int key) { return h->bidirectional ? 0 : key; }

/* Adds the contributions of P and dS to dq, dk and dv. */
static void chunk_gradients(const ch_attention_head *h, const attention_gradients *p, int first, int rows, int key) {
  int end = first + rows, begins = first == first_block(h, key), ends = end == h->T;
  int last = seen_by(h, end) <= key + CHUNK; /* last chunk of the block */
  for (int r = 0; r < rows; r += ROWS) {
    ch_head_result dq = gradient(h, p, p->dq + (first + r) * p->width, h->dq, h->ld, first + r, !key, last, h->scale);
    if (!key) prefetch_rows(h, h->out, h->ld, first + BLOCK + r);
    if (last) prefetch_rows(h, h->dq, h->ld, first + r);
    p->run->rows(h->dh, in_chunk(h, key, smaller(first + r + ROWS, end)), p->dp + r * LD, p->k, &dq);
  }
  for (int j = 0; j < in_chunk(h, key, end); j += ROWS) {
    int hidden = !h->bidirectional && key + j > first, skip = hidden ? key + j - first : 0; /* masked rows */
    int64_t from = (first + skip) * p->width;
    ch_head_result dv = gradient(h, p, p->dv + j * p->width, h->dv, h->dkv_ld, key + j, begins, ends, 1);
    ch_head_result dk = gradient(h, p, p->dk + j * p->width, h->dk, h->dkv_ld, key + j, begins, ends, 1);
    if (begins) prefetch_rows(h, h->dk, h->dkv_ld, key + j), prefetch_rows(h, h->dv, h->dkv_ld, key + j);
    if (begins) prefetch_rows(h, h->k, h->kv_ld, key + CHUNK + j), prefetch_rows(h, h->v, h->kv_ld, key + CHUNK + j);
    p->run->columns(h->dh, rows - skip, p->s + skip * LD + j, p->dout + from, &dv);
    p->run->columns(h->dh, rows - skip, p->dp + skip * LD + j, p->q + from, &dk);
  }
}

void CH_SIMD(ch_attention_backward)(const ch_attention_head *h) {
  attention_gradients p = begin_backward(h);
  for (int key = 0; key < h->T; key += CHUNK) {
    int keys = smaller(CHUNK, h->T - key);
    pack_panels(h, h->k + key * h->kv_ld, h->kv_ld, keys, p.kt);
    pack_panels(h, h->v + key * h->kv_ld, h->kv_ld, keys, p.vt);
    pack(h, h->k + key * h->kv_ld, h->kv_ld, keys, keys, 1, p.k);
    for (int first = first_block(h, key); first < h->T; first += BLOCK) {
      int rows = smaller(BLOCK, h->T - first);
      if (!key) pack_block(h, &p, first, rows);
      chunk_scores(h, &p, first, rows, key);
      chunk_gradients(h, &p, first, rows, key);
    }
  }
}
