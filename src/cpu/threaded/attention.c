/* Causal attention, one task for each sequence and head, on kernels of their own (simd/attention.c). Forward cuts long
 * sequences further; backward does not, so that dk and dv add up in a fixed order. Arithmetic is in float whatever the
 * compute type. */
#include "cpu/simd/attention.h"

#include <omp.h>

#include "cpu/threaded/threaded.h"

enum { SEGMENT = 8 * CH_ATTENTION_CHUNK }; /* rows of a forward task: long enough to pack keys and values for */

typedef struct {
  const ch_attention_args *a;
  int64_t ld, tasks;
  int64_t row;  /* floats for one head's biases */
  int *bucket;  /* [T] by distance */
  float *bias;  /* [H,row] by descending distance */
  float *dbias; /* [tasks,row] the same order, each task's own sum */
  float *work;  /* of all threads */
} plan;

static plan make_plan(ch_exec *x, const ch_attention_args *a) {
  plan p = {
      .a = a, .ld = a->ld ? a->ld : (int64_t)a->H * a->dh, .tasks = (int64_t)a->B * a->H, .row = a->T + CH_CAUSAL_PAD};
  p.bucket = CH_NEW(&x->scratch, int, a->T);
  p.bias = CH_NEW(&x->scratch, float, a->H *p.row);
  p.work = CH_NEW(&x->scratch, float, x->threads *ch_attention_work(a->T, a->dh));
  if (ch_counting(x)) return p;
  for (int distance = 0; distance < a->T; distance++) {
    p.bucket[distance] = ch_attention_bucket(distance, a->buckets, a->max_distance);
    for (int head = 0; head < a->H; head++)
      p.bias[head * p.row + a->T - 1 - distance] = a->rel_bias[p.bucket[distance] * a->H + head];
  }
  return p;
}

/* One sequence's head as the calling thread works on it. */
static ch_attention_head head_of(const plan *p, int64_t task) {
  const ch_attention_args *a = p->a;
  int64_t start = task / a->H * a->T * p->ld + task % a->H * a->dh;
  ch_attention_head h = {.T = a->T,
                         .dh = a->dh,
                         .ld = p->ld,
                         .scale = a->scale,
                         .q = a->q + start,
                         .k = a->k + start,
                         .v = a->v + start,
                         .bias = p->bias + task % a->H * p->row,
                         .out = a->out + start,
                         .lse = a->lse + task * a->T};
  h.work = p->work + omp_get_thread_num() * ch_attention_work(a->T, a->dh);
  if (p->dbias) {
    h.dout = a->dout + start;
    h.dq = a->dq + start, h.dk = a->dk + start, h.dv = a->dv + start;
    h.dbias = p->dbias + task * p->row;
  }
  return h;
}

static void attention(ch_exec *x, const ch_attention_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  plan p = make_plan(x, a);
  void (*forward)(const ch_attention_head *, int, int) = CH_SIMD_PICK(ch_attention_forward);
  int64_t segments = (a->T + SEGMENT - 1) / SEGMENT;
  if (!ch_counting(x)) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(x->threads)
    for (int64_t i = 0; i < p.tasks * segments; i++) {
      ch_attention_head h = head_of(&p, i / segments);
      int begin = (int)(i % segments) * SEGMENT;
      forward(&h, begin, a->T - begin < SEGMENT ? a->T : begin + SEGMENT);
    }
  }
  ch_arena_release(&x->scratch, mark);
}

/* drel_bias += the tasks' sums by distance, sequence after sequence. */
static void add_bias_gradient(const ch_exec *x, const plan *p) {
  const ch_attention_args *a = p->a;
#pragma omp parallel for num_threads(x->threads)
  for (int head = 0; head < a->H; head++)
    for (int distance = 0; distance < a->T; distance++) {
      const float *sum = p->dbias + a->T - 1 - distance;
      real *to = a->drel_bias + p->bucket[distance] * a->H + head;
      for (int64_t task = head; task < p->tasks; task += a->H) *to += sum[task * p->row];
    }
}

static void attention_backward(ch_exec *x, const ch_attention_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  plan p = make_plan(x, a);
  p.dbias = CH_NEW(&x->scratch, float, p.tasks *p.row);
  void (*backward)(const ch_attention_head *) = CH_SIMD_PICK(ch_attention_backward);
  if (!ch_counting(x)) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(x->threads)
    for (int64_t task = 0; task < p.tasks; task++) {
      ch_attention_head h = head_of(&p, task);
      backward(&h);
    }
    add_bias_gradient(x, &p);
  }
  ch_arena_release(&x->scratch, mark);
}

void ch_threaded_fill_attention(ch_ops *ops) {
  ops->attention = attention;
  ops->attention_backward = attention_backward;
}
