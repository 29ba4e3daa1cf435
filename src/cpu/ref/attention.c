/* Attention in plain C, row by row; one task per sequence and KV head, with all query heads of that KV head. */
#include <omp.h>
#include <tgmath.h>

#include "cpu/ref/ref.h"

/* One sequence and head: offset and stride of its rows, and the bias of each distance. */
typedef struct {
  const ch_attention_args *a;
  const int *bucket; /* the bucket of each distance; points at distance 0 */
  int64_t ld, start, kv_ld, kv_start, task, sequence;
  int head, first; /* query head, and the first of its KV head */
} head_task;

static head_task make_task(const ch_attention_args *a, const int *bucket, int64_t task) {
  int64_t ld = ch_attention_ld(a), kv_ld = ch_attention_kv_ld(a), row = task / a->H * a->T;
  int head = (int)(task % a->H), group = a->H / ch_kv_heads(a->H, a->kv_heads);
  return (head_task){.a = a,
                     .bucket = bucket,
                     .ld = ld,
                     .start = row * ld + (int64_t)head * a->dh,
                     .kv_ld = kv_ld,
                     .kv_start = row * kv_ld + (int64_t)(head / group) * a->dh,
                     .task = task,
                     .sequence = task / a->H,
                     .head = head,
                     .first = head % group == 0};
}

static real bias_of(const head_task *t, int distance) {
  return t->a->rel_bias ? t->a->rel_bias[t->bucket[distance] * t->a->H + t->head] : 0;
}

static real dot(int count, const real *a, const real *b) {
  real sum = 0;
  for (int i = 0; i < count; i++) sum += a[i] * b[i];
  return sum;
}

/* Row i of the scores: s[j] for each visible key j. */
static void score_row(const head_task *t, int i, real *s) {
  const ch_attention_args *a = t->a;
  const real *q = a->q + t->start + i * t->ld;
  for (int j = 0; j < ch_attention_seen(a, t->sequence, i); j++)
    s[j] = a->scale * dot(a->dh, q, a->k + t->kv_start + j * t->kv_ld) + bias_of(t, i - j);
}

static void forward_task(const head_task *t, real *p) {
  const ch_attention_args *a = t->a;
  for (int i = 0; i < ch_attention_length(a, t->sequence); i++) {
    int seen = ch_attention_seen(a, t->sequence, i);
    score_row(t, i, p);
    real max = p[0], sum = 0;
    for (int j = 1; j < seen; j++) max = p[j] > max ? p[j] : max;
    for (int j = 0; j < seen; j++) sum += p[j] = exp(p[j] - max);
    a->lse[t->task * a->T + i] = max + log(sum);
    real *out = a->out + t->start + i * t->ld;
    for (int c = 0; c < a->dh; c++) out[c] = 0;
    for (int j = 0; j < seen; j++)
      for (int c = 0; c < a->dh; c++) out[c] += p[j] / sum * a->v[t->kv_start + j * t->kv_ld + c];
  }
  for (int i = ch_attention_length(a, t->sequence); i < a->T; i++) {
    a->lse[t->task * a->T + i] = 0;
    for (int c = 0; c < a->dh; c++) a->out[t->start + i * t->ld + c] = 0;
  }
}

/* dbias: [buckets] of this task; p and dp: rows of T. */
static void backward_task(const head_task *t, real *p, real *dp, real *dbias) {
  const ch_attention_args *a = t->a;
  for (int b = 0; b < a->buckets && a->rel_bias; b++) dbias[b] = 0;
  for (int j = 0; j < a->T; j++)
    for (int c = 0; c < a->dh; c++) {
      a->dq[t->start + j * t->ld + c] = 0;
      if (t->first) a->dk[t->kv_start + j * t->kv_ld + c] = a->dv[t->kv_start + j * t->kv_ld + c] = 0;
    }
  for (int i = 0; i < ch_attention_length(a, t->sequence); i++) {
    const real *dout = a->dout + t->start + i * t->ld, *q = a->q + t->start + i * t->ld;
    real *dq = a->dq + t->start + i * t->ld;
    int seen = ch_attention_seen(a, t->sequence, i);
    score_row(t, i, p);
    for (int j = 0; j < seen; j++) {
      p[j] = exp(p[j] - a->lse[t->task * a->T + i]);
      dp[j] = dot(a->dh, dout, a->v + t->kv_start + j * t->kv_ld);
    }
    real mean = dot(seen, p, dp);
    for (int j = 0; j < seen; j++) {
      real ds = p[j] * (dp[j] - mean);
      int64_t row = t->kv_start + j * t->kv_ld;
      if (a->rel_bias) dbias[t->bucket[i - j]] += ds;
      for (int c = 0; c < a->dh; c++) {
        a->dv[row + c] += p[j] * dout[c];
        a->dk[row + c] += a->scale * ds * q[c];
        dq[c] += a->scale * ds * a->k[row + c];
      }
    }
  }
}

CH_REF_SCRATCH_OP(attention) {
  CH_SCRATCH(x);
  int *bucket = CH_NEW(&x->scratch, int, ch_attention_distances(a));
  real *rows = CH_NEW(&x->scratch, real, (int64_t)x->threads * a->T);
  if (ch_counting(x)) return;
  if (a->rel_bias) ch_attention_all_buckets(a, bucket);
#pragma omp parallel for schedule(dynamic, 1) num_threads(x->threads)
  for (int64_t task = 0; task < (int64_t)a->B * a->H; task++) {
    head_task t = make_task(a, bucket + ch_attention_ahead(a), task);
    forward_task(&t, rows + (int64_t)omp_get_thread_num() * a->T);
  }
}

CH_REF_SCRATCH_OP(attention_backward) {
  CH_SCRATCH(x);
  int64_t tasks = (int64_t)a->B * a->H;
  int group = a->H / ch_kv_heads(a->H, a->kv_heads);
  int *bucket = CH_NEW(&x->scratch, int, ch_attention_distances(a));
  real *rows = CH_NEW(&x->scratch, real, (int64_t)x->threads * 2 * a->T);
  real *dbias = CH_NEW(&x->scratch, real, tasks * a->buckets); /* [tasks,buckets]: added in order below */
  if (ch_counting(x)) return;
  if (a->rel_bias) ch_attention_all_buckets(a, bucket);
#pragma omp parallel for schedule(dynamic, 1) num_threads(x->threads)
  for (int64_t first = 0; first < tasks; first += group)
    for (int64_t task = first; task < first + group; task++) {
      head_task t = make_task(a, bucket + ch_attention_ahead(a), task);
      real *p = rows + (int64_t)omp_get_thread_num() * 2 * a->T;
      backward_task(&t, p, p + a->T, dbias + task * a->buckets);
    }
  for (int64_t task = 0; task < tasks && a->rel_bias; task++)
    for (int b = 0; b < a->buckets; b++) a->drel_bias[b * a->H + task % a->H] += dbias[task * a->buckets + b];
}
