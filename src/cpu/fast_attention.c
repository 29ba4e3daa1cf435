/* Causal attention in blocks of query rows: scores of a block against all keys it sees stay in cache, as products on
 * one thread. Forward runs blocks in any order; backward runs one sequence's head on one thread, so that dk and dv add
 * up in a fixed order. Arithmetic is in float whatever the compute type. */
#include <omp.h>
#include <string.h>

#include "cpu/fast.h"
#include "cpu/product.h"
#include "cpu/rows.h"

enum { BLOCK = 64 };

typedef struct {
  void (*softmax)(const ch_causal_block *, float *, float *, float *);
  void (*backward)(const ch_causal_block *, float *, float *, const float *, const float *, float *);
} kernels;

typedef struct {
  const ch_attention_args *a;
  kernels kernel;
  int64_t ld;
  float *bias;  /* [H,T] by descending distance */
  float *dbias; /* [B*H,T] the same order, each task's own sum */
} plan;

/* One thread's scratch: two blocks of scores, a number for each row, and what products need. */
typedef struct {
  float *s, *dp, *row;
  char *product;
} workspace;

static size_t round_up(size_t bytes) { return (bytes + 63) & ~(size_t)63; }
static size_t scores_bytes(const ch_attention_args *a) { return round_up((size_t)BLOCK * a->T * sizeof(float)); }
static size_t workspace_bytes(const ch_attention_args *a) {
  return 2 * scores_bytes(a) + round_up(BLOCK * sizeof(float)) + CH_PRODUCT_SCRATCH;
}

static workspace workspace_of(const ch_attention_args *a, char *memory) {
  memory += workspace_bytes(a) * (size_t)omp_get_thread_num();
  size_t scores = scores_bytes(a), rows = round_up(BLOCK * sizeof(float));
  return (workspace){(float *)memory, (float *)(memory + scores), (float *)(memory + 2 * scores),
                     memory + 2 * scores + rows};
}

/* bias[head][T-1-distance] */
static void fill_bias(const ch_attention_args *a, float *bias) {
  for (int distance = 0; distance < a->T; distance++) {
    int bucket = ch_attention_bucket(distance, a->buckets, a->max_distance);
    for (int head = 0; head < a->H; head++)
      bias[(int64_t)head * a->T + a->T - 1 - distance] = a->rel_bias[bucket * a->H + head];
  }
}

/* The block of rows that starts at `first`, of sequence and head number `task`. */
static ch_causal_block block_of(const plan *p, int64_t task, int first) {
  const ch_attention_args *a = p->a;
  int rows = a->T - first < BLOCK ? a->T - first : BLOCK;
  return (ch_causal_block){rows, first, a->T, first + rows, p->bias + task % a->H * a->T};
}

static int64_t start_of(const plan *p, int64_t task) {
  return task / p->a->H * p->a->T * p->ld + task % p->a->H * p->a->dh;
}

/* s[rows,keys] = alpha left[rows,dh] right[keys,dh]^T */
static void scores(const plan *p, const ch_causal_block *b, const float *left, const float *right, float alpha,
                   float *s, const workspace *w) {
  ch_product_run(&(ch_product){.m = b->rows,
                               .n = b->ld,
                               .k = p->a->dh,
                               .trans_b = 1,
                               .a = left,
                               .lda = p->ld,
                               .b = right,
                               .ldb = p->ld,
                               .c = s,
                               .ldc = b->ld,
                               .alpha = alpha},
                 w->product);
}

/* out[rows,dh] = alpha s[rows,keys] values[keys,dh] */
static void mix(const plan *p, const ch_causal_block *b, const float *s, const float *values, float alpha, float *out,
                const workspace *w) {
  ch_product_run(&(ch_product){.m = b->rows,
                               .n = p->a->dh,
                               .k = b->ld,
                               .a = s,
                               .lda = b->ld,
                               .b = values,
                               .ldb = p->ld,
                               .c = out,
                               .ldc = p->ld,
                               .alpha = alpha},
                 w->product);
}

/* out[keys,dh] (+)= alpha s[rows,keys]^T rows_in[rows,dh]; the block that sees all keys comes first and sets. */
static void spread(const plan *p, const ch_causal_block *b, const float *s, const float *in, float alpha, float *out,
                   const workspace *w) {
  ch_product_run(&(ch_product){.m = b->ld,
                               .n = p->a->dh,
                               .k = b->rows,
                               .trans_a = 1,
                               .a = s,
                               .lda = b->ld,
                               .b = in,
                               .ldb = p->ld,
                               .c = out,
                               .ldc = p->ld,
                               .alpha = alpha,
                               .accumulate = b->ld < p->a->T},
                 w->product);
}

static void forward_block(const plan *p, int64_t task, int first, const workspace *w) {
  const ch_attention_args *a = p->a;
  ch_causal_block b = block_of(p, task, first);
  int64_t start = start_of(p, task), row = start + first * p->ld;
  scores(p, &b, a->q + row, a->k + start, a->scale, w->s, w);
  p->kernel.softmax(&b, w->s, w->row, a->lse + task * a->T + first);
  mix(p, &b, w->s, a->v + start, 1, a->out + row, w);
  for (int r = 0; r < b.rows; r++)
    for (int i = 0; i < a->dh; i++) a->out[row + r * p->ld + i] *= w->row[r];
}

/* <dout, out> of each row: what softmax's backward subtracts. */
static void row_deltas(const plan *p, const ch_causal_block *b, int64_t row, float *delta) {
  for (int r = 0; r < b->rows; r++) {
    const float *dout = p->a->dout + row + r * p->ld, *out = p->a->out + row + r * p->ld;
    delta[r] = 0;
    for (int i = 0; i < p->a->dh; i++) delta[r] += dout[i] * out[i];
  }
}

static void backward_task(const plan *p, int64_t task, const workspace *w) {
  const ch_attention_args *a = p->a;
  int64_t start = start_of(p, task);
  float *dbias = p->dbias + task * a->T;
  memset(dbias, 0, (size_t)a->T * sizeof *dbias);
  for (int first = (a->T - 1) / BLOCK * BLOCK; first >= 0; first -= BLOCK) {
    ch_causal_block b = block_of(p, task, first);
    int64_t row = start + first * p->ld;
    scores(p, &b, a->q + row, a->k + start, a->scale, w->s, w);
    scores(p, &b, a->dout + row, a->v + start, 1, w->dp, w);
    row_deltas(p, &b, row, w->row);
    p->kernel.backward(&b, w->s, w->dp, a->lse + task * a->T + first, w->row, dbias);
    spread(p, &b, w->s, a->dout + row, 1, a->dv + start, w);
    spread(p, &b, w->dp, a->q + row, a->scale, a->dk + start, w);
    mix(p, &b, w->dp, a->k + start, a->scale, a->dq + row, w);
  }
}

/* drel_bias += the tasks' sums by distance, sequence after sequence. */
static void add_bias_gradient(const plan *p) {
  const ch_attention_args *a = p->a;
  for (int64_t task = 0; task < (int64_t)a->B * a->H; task++)
    for (int distance = 0; distance < a->T; distance++)
      a->drel_bias[ch_attention_bucket(distance, a->buckets, a->max_distance) * a->H + task % a->H] +=
          p->dbias[task * a->T + a->T - 1 - distance];
}

static plan make_plan(ch_exec *x, const ch_attention_args *a) {
  plan p = {
      .a = a, .ld = a->ld ? a->ld : (int64_t)a->H * a->dh, .bias = CH_NEW(&x->scratch, float, (int64_t)a->H * a->T)};
  p.kernel = (kernels){CH_SIMD_PICK(ch_causal_softmax), CH_SIMD_PICK(ch_causal_backward)};
  if (!ch_counting(x)) fill_bias(a, p.bias);
  return p;
}

static void attention(ch_exec *x, const ch_attention_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  plan p = make_plan(x, a);
  char *memory = CH_NEW(&x->scratch, char, (size_t)x->threads *workspace_bytes(a));
  int blocks = (a->T + BLOCK - 1) / BLOCK;
  if (!ch_counting(x)) {
#pragma omp parallel num_threads(x->threads)
    {
      ch_product_begin();
      workspace w = workspace_of(a, memory);
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < (int64_t)a->B * a->H * blocks; i++) forward_block(&p, i / blocks, i % blocks * BLOCK, &w);
    }
  }
  ch_arena_release(&x->scratch, mark);
}

static void attention_backward(ch_exec *x, const ch_attention_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  plan p = make_plan(x, a);
  p.dbias = CH_NEW(&x->scratch, float, (int64_t)a->B * a->H * a->T);
  char *memory = CH_NEW(&x->scratch, char, (size_t)x->threads *workspace_bytes(a));
  if (!ch_counting(x)) {
#pragma omp parallel num_threads(x->threads)
    {
      ch_product_begin();
      workspace w = workspace_of(a, memory);
#pragma omp for schedule(dynamic, 1)
      for (int64_t task = 0; task < (int64_t)a->B * a->H; task++) backward_task(&p, task, &w);
    }
    add_bias_gradient(&p);
  }
  ch_arena_release(&x->scratch, mark);
}

void ch_fast_fill_attention(ch_ops *ops) {
  ops->attention = attention;
  ops->attention_backward = attention_backward;
}
