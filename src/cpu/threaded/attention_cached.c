/* Attention over KV caches: one task per head and few rows of a sequence. All products are batch-invariant, so a row's
 * result does not depend on the other rows. Arithmetic is in float for every compute type. */
#include <omp.h>
#include <string.h>

#include "cpu/batch_invariant.h"
#include "cpu/simd/rows.h"
#include "cpu/threaded/threaded.h"

_Static_assert((int)CH_BIAS_PAD >= (int)CH_SCORES_PAD, "the softmax reads wide");

enum {
  ROWS = 12
}; /* rows per task: a multiple of every tile, and few enough that their scores stay in a core's cache */

typedef struct {
  int sequence, row, rows;
} segment;

/* Appends keys and values of one sequence and KV head to its cache. */
static void append_to_cache(const ch_attention_cached_args *a, int b, int head) {
  int64_t heads = ch_kv_heads(a->H, a->kv_heads), width = heads * a->dh;
  int64_t to = ((b * heads + head) * a->positions + a->past[b]) * a->dh;
  for (int64_t row = a->begin[b]; row < a->begin[b + 1]; row++, to += a->dh) {
    memcpy(a->keys + to, a->k + row * width + head * a->dh, (size_t)a->dh * sizeof(float));
    memcpy(a->values + to, a->v + row * width + head * a->dh, (size_t)a->dh * sizeof(float));
  }
}

static int64_t scores_stride(int positions) { return (positions + CH_SCORES_PAD - 1) / CH_SCORES_PAD * CH_SCORES_PAD; }

typedef void (*product)(const ch_product *p);
typedef void (*softmax)(const ch_scores_block *b, float *s, float *inverse, float *lse);

/* Attention of one head on the rows of a segment; bias: the head's. */
static void attend(const ch_attention_cached_args *a, segment g, int head, const float *bias, float *scores,
                   product run, softmax exponentials) {
  int64_t heads = ch_kv_heads(a->H, a->kv_heads);
  int64_t width = (int64_t)a->H * a->dh, place = g.row * width + (int64_t)head * a->dh,
          ld = scores_stride(a->positions);
  int64_t cache = (g.sequence * heads + head * heads / a->H) * a->positions * a->dh;
  int first = a->past[g.sequence] + g.row - a->begin[g.sequence], seen = first + g.rows;
  float inverse[ROWS], lse[ROWS];
  run(&(ch_product){.trans_b = 1,
                    .m = g.rows,
                    .n = seen,
                    .k = a->dh,
                    .a = a->q + place,
                    .lda = width,
                    .b = a->keys + cache,
                    .ldb = a->dh,
                    .c = scores,
                    .ldc = ld,
                    .alpha = a->scale});
  ch_scores_block block = {g.rows, first, a->positions, 0, ld, bias};
  exponentials(&block, scores, inverse, lse);
  run(&(ch_product){.m = g.rows,
                    .n = a->dh,
                    .k = seen,
                    .a = scores,
                    .lda = ld,
                    .b = a->values + cache,
                    .ldb = a->dh,
                    .c = a->out + place,
                    .ldc = width,
                    .alpha = 1});
  for (int r = 0; r < g.rows; r++)
    for (int c = 0; c < a->dh; c++) a->out[place + r * width + c] *= inverse[r];
}

static int cut_segments(const ch_attention_cached_args *a, segment *segments) {
  int count = 0;
  for (int b = 0; b < a->B; b++)
    for (int row = a->begin[b]; row < a->begin[b + 1]; row += ROWS)
      segments[count++] = (segment){b, row, a->begin[b + 1] - row < ROWS ? a->begin[b + 1] - row : ROWS};
  return count;
}

/* Number of multiplications per head. */
static int64_t head_work(const ch_attention_cached_args *a) {
  int64_t work = 0;
  for (int b = 0; b < a->B; b++)
    work += (int64_t)(a->begin[b + 1] - a->begin[b]) * (a->past[b] + a->begin[b + 1] - a->begin[b]);
  return 2 * work * a->dh;
}

static void attention_cached(ch_exec *x, const ch_attention_cached_args *a) {
  CH_SCRATCH(x);
  segment *segments = CH_NEW(&x->scratch, segment, a->max_rows);
  float *scores = CH_NEW(&x->scratch, float, (x->threads * ROWS * scores_stride(a->positions)));
  int64_t row = a->positions + CH_BIAS_PAD;
  float *none = a->bias ? NULL : CH_NEW(&x->scratch, float, row);
  if (ch_counting(x)) return;
  int kv_tasks = a->B * ch_kv_heads(a->H, a->kv_heads), kv_heads = kv_tasks / a->B;
  const float *bias = none ? memset(none, 0, (size_t)row * sizeof *none) : a->bias;
  if (none) row = 0;
  product run = CH_SIMD_PICK(ch_invariant_product);
  softmax exponentials = CH_SIMD_PICK(ch_scores_softmax);
  int64_t tasks = (int64_t)cut_segments(a, segments) * a->H;
#pragma omp parallel num_threads(ch_invariant_threads(x, a->H *head_work(a)))
  {
#pragma omp for schedule(static)
    for (int task = 0; task < kv_tasks; task++) append_to_cache(a, task / kv_heads, task % kv_heads);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < tasks; task++)
      attend(a, segments[task / a->H], (int)(task % a->H), bias + task % a->H * row,
             scores + omp_get_thread_num() * ROWS * scores_stride(a->positions), run, exponentials);
  }
}

void ch_threaded_fill_attention_cached(ch_ops *ops) { ops->attention_cached = attention_cached; }
