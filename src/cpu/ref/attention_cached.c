/* Attention of new positions over KV caches in plain C, row by row. */
#include <omp.h>
#include <tgmath.h>

#include "cpu/ref/ref.h"

CH_REF_OP(attention_bias) {
  int64_t row = a->positions + CH_BIAS_PAD;
  int far = a->max_distance > a->buckets ? a->max_distance : a->buckets; /* larger distances are in the last bucket */
  for (int distance = 0; distance < a->positions; distance++) {
    int bucket = ch_attention_bucket(distance < far ? distance : far, a->buckets, a->max_distance);
    for (int head = 0; head < a->H; head++)
      a->bias[head * row + a->positions - 1 - distance] = a->rel_bias[bucket * a->H + head];
  }
  for (int head = 0; head < a->H; head++)
    for (int i = a->positions; i < row; i++) a->bias[head * row + i] = 0;
}

static void append_to_cache(const ch_attention_cached_args *a, int b, int head) {
  int64_t heads = ch_kv_heads(a->H, a->kv_heads), width = heads * a->dh,
          cache = (b * heads + head) * a->positions + a->past[b];
  for (int row = a->begin[b]; row < a->begin[b + 1]; row++, cache++)
    for (int c = 0; c < a->dh; c++) {
      a->keys[cache * a->dh + c] = a->k[row * width + (int64_t)head * a->dh + c];
      a->values[cache * a->dh + c] = a->v[row * width + (int64_t)head * a->dh + c];
    }
}

/* Attention of the query row at position `at` of sequence b. */
static void attend(const ch_attention_cached_args *a, int b, int head, int row, int at, real *p) {
  int64_t heads = ch_kv_heads(a->H, a->kv_heads), cache = (b * heads + head * heads / a->H) * a->positions * a->dh,
          place = ((int64_t)row * a->H + head) * a->dh;
  const real *q = a->q + place, *keys = a->keys + cache, *values = a->values + cache;
  const real *bias = a->bias ? a->bias + head * (int64_t)(a->positions + CH_BIAS_PAD) + a->positions - 1 - at : NULL;
  real *out = a->out + place, max = -INFINITY, sum = 0;
  for (int j = 0; j <= at; j++) {
    real dot = 0;
    for (int c = 0; c < a->dh; c++) dot += q[c] * keys[(int64_t)j * a->dh + c];
    p[j] = a->scale * dot + (bias ? bias[j] : 0);
    max = p[j] > max ? p[j] : max;
  }
  for (int j = 0; j <= at; j++) sum += p[j] = exp(p[j] - max);
  for (int c = 0; c < a->dh; c++) out[c] = 0;
  for (int j = 0; j <= at; j++)
    for (int c = 0; c < a->dh; c++) out[c] += p[j] / sum * values[(int64_t)j * a->dh + c];
}

CH_REF_SCRATCH_OP(attention_cached) {
  CH_SCRATCH(x);
  int tasks = a->B * a->H, heads = ch_kv_heads(a->H, a->kv_heads);
  real *rows = CH_NEW(&x->scratch, real, (int64_t)x->threads * a->positions);
  if (ch_counting(x)) return;
  for (int task = 0; task < a->B * heads; task++) append_to_cache(a, task / heads, task % heads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(x->threads)
  for (int task = 0; task < tasks; task++) {
    int b = task / a->H, head = task % a->H;
    for (int row = a->begin[b], at = a->past[b]; row < a->begin[b + 1]; row++, at++)
      attend(a, b, head, row, at, rows + (int64_t)omp_get_thread_num() * a->positions);
  }
}
