/* Attention, one task per sequence and head (kernels: simd/attention.c). Forward splits long sequences further;
 * backward does not, so that dk and dv are summed in a fixed order. Arithmetic is in float for every compute type. */
#include <omp.h>
#include <string.h>

#include "cpu/simd/attention_head.h"
#include "cpu/threaded/threaded.h"

enum { SEGMENT = 8 * CH_ATTENTION_CHUNK }; /* rows per forward task: enough to amortize packing keys and values */

typedef struct {
  const ch_attention_args *a;
  int64_t ld, kv_ld, tasks;
  int kv_heads, group; /* KV heads, and query heads per KV head */
  int64_t row;         /* floats per head's biases */
  int distances;       /* number of distances, from the farthest earlier key to the farthest later key */
  int *bucket;         /* [distances] ascending */
  float *bias;         /* [H,row] by descending distance; without a bias [1,row] of zeros */
  float *dbias;        /* [tasks,row] in the same order, one sum per task; without a bias [threads,row] */
  float *dk, *dv;      /* [tasks,T,dh] per query head if KV heads are shared, else NULL */
  float *work;         /* scratch of all threads */
} attention_plan;

static attention_plan allocate_plan(ch_exec *x, const ch_attention_args *a) {
  attention_plan p = {.a = a,
                      .ld = ch_attention_ld(a),
                      .kv_ld = ch_attention_kv_ld(a),
                      .tasks = (int64_t)a->B * a->H,
                      .kv_heads = ch_kv_heads(a->H, a->kv_heads),
                      .distances = ch_attention_distances(a),
                      .row = ch_attention_distances(a) + CH_SCORES_PAD};
  p.group = a->H / p.kv_heads;
  p.bucket = CH_NEW(&x->scratch, int, p.distances);
  p.bias = CH_NEW(&x->scratch, float, (a->rel_bias ? a->H : 1) * p.row);
  p.work = CH_NEW(&x->scratch, float, (x->threads * ch_attention_work(a->T, a->dh)));
  return p;
}

static void fill_bias(const attention_plan *p) {
  const ch_attention_args *a = p->a;
  if (!a->rel_bias) {
    memset(p->bias, 0, (size_t)p->row * sizeof *p->bias);
    return;
  }
  ch_attention_all_buckets(a, p->bucket);
  for (int i = 0; i < p->distances; i++)
    for (int head = 0; head < a->H; head++)
      p->bias[head * p->row + p->distances - 1 - i] = a->rel_bias[p->bucket[i] * a->H + head];
}

/* The kernel arguments of a task, with the calling thread's scratch. */
static ch_attention_head head_of(const attention_plan *p, int64_t task) {
  const ch_attention_args *a = p->a;
  int64_t row = task / a->H * a->T, head = task % a->H, thread = omp_get_thread_num();
  int T = ch_attention_length(a, task / a->H), shorter = a->T - T; /* then biases begin at a smaller distance */
  int64_t start = row * p->ld + head * a->dh, kv_start = row * p->kv_ld + head / p->group * a->dh;
  ch_attention_head h = {.T = T,
                         .dh = a->dh,
                         .bidirectional = a->bidirectional,
                         .ld = p->ld,
                         .kv_ld = p->kv_ld,
                         .dkv_ld = p->dk ? a->dh : p->kv_ld,
                         .scale = a->scale,
                         .q = a->q + start,
                         .k = a->k + kv_start,
                         .v = a->v + kv_start,
                         .bias = p->bias + (a->rel_bias ? head : 0) * p->row + shorter,
                         .out = a->out + start,
                         .lse = a->lse + task * a->T};
  h.work = p->work + thread * ch_attention_work(a->T, a->dh);
  if (p->dbias) {
    int64_t offset = task * a->T * a->dh;
    h.dout = a->dout + start;
    h.dq = a->dq + start;
    h.dk = p->dk ? p->dk + offset : a->dk + kv_start;
    h.dv = p->dk ? p->dv + offset : a->dv + kv_start;
    h.dbias = p->dbias + (a->rel_bias ? task : thread) * p->row + shorter;
    if (shorter) memset(h.dbias - shorter, 0, (size_t)p->row * sizeof(float));
  }
  return h;
}

/* Sets the padding positions h->T .. all-1 of a result to 0. */
static void clear_rows(const ch_attention_head *h, float *y, int64_t ld, int all) {
  for (int t = h->T; t < all; t++) memset(y + t * ld, 0, (size_t)h->dh * sizeof *y);
}

static void attention(ch_exec *x, const ch_attention_args *a) {
  CH_SCRATCH(x);
  attention_plan p = allocate_plan(x, a);
  void (*forward)(const ch_attention_head *, int, int) = CH_SIMD_PICK(ch_attention_forward);
  int64_t segments = (a->T + SEGMENT - 1) / SEGMENT;
  if (ch_counting(x)) return;
  fill_bias(&p);
#pragma omp parallel for schedule(dynamic, 1) num_threads(x->threads)
  for (int64_t i = 0; i < p.tasks * segments; i++) {
    ch_attention_head h = head_of(&p, i / segments);
    int begin = (int)(i % segments) * SEGMENT;
    if (begin < h.T) forward(&h, begin, h.T - begin < SEGMENT ? h.T : begin + SEGMENT);
    if (!begin && h.T < a->T) memset(h.lse + h.T, 0, (size_t)(a->T - h.T) * sizeof *h.lse);
    if (!begin) clear_rows(&h, h.out, h.ld, a->T);
  }
}

/* drel_bias += the tasks' sums by distance, in order of sequences. */
static void add_bias_gradient(const ch_exec *x, const attention_plan *p) {
  const ch_attention_args *a = p->a;
#pragma omp parallel for num_threads(x->threads)
  for (int head = 0; head < a->H; head++)
    for (int i = 0; i < p->distances; i++) {
      const float *sum = p->dbias + p->distances - 1 - i;
      real *to = a->drel_bias + p->bucket[i] * a->H + head;
      for (int64_t task = head; task < p->tasks; task += a->H) *to += sum[task * p->row];
    }
}

/* to[dh] = the sum over the query heads of a KV head; from: [T,dh] per head. */
static void add_group(const attention_plan *p, const float *from, float *to) {
  int dh = p->a->dh;
  memcpy(to, from, (size_t)dh * sizeof *to);
  for (int i = 1; i < p->group; i++) {
    const float *next = from + (int64_t)i * p->a->T * dh;
#pragma omp simd
    for (int c = 0; c < dh; c++) to[c] += next[c];
  }
}

static void add_shared_gradients(const ch_exec *x, const attention_plan *p) {
  const ch_attention_args *a = p->a;
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < (int64_t)a->B * p->kv_heads * a->T; i++) {
    int64_t kv_task = i / a->T, t = i % a->T;
    int64_t from = (kv_task * p->group * a->T + t) * a->dh,
            to = (kv_task / p->kv_heads * a->T + t) * p->kv_ld + kv_task % p->kv_heads * a->dh;
    add_group(p, p->dk + from, a->dk + to);
    add_group(p, p->dv + from, a->dv + to);
  }
}

static void attention_backward(ch_exec *x, const ch_attention_args *a) {
  CH_SCRATCH(x);
  attention_plan p = allocate_plan(x, a);
  p.dbias = CH_NEW(&x->scratch, float, (a->rel_bias ? p.tasks : x->threads) * p.row);
  if (p.group > 1) {
    p.dk = CH_NEW(&x->scratch, float, p.tasks * a->T * a->dh);
    p.dv = CH_NEW(&x->scratch, float, p.tasks * a->T * a->dh);
  }
  void (*backward)(const ch_attention_head *) = CH_SIMD_PICK(ch_attention_backward);
  if (ch_counting(x)) return;
  fill_bias(&p);
#pragma omp parallel for schedule(dynamic, 1) num_threads(x->threads)
  for (int64_t task = 0; task < p.tasks; task++) {
    ch_attention_head h = head_of(&p, task);
    backward(&h);
    clear_rows(&h, h.dq, h.ld, a->T);
    clear_rows(&h, h.dk, h.dkv_ld, a->T);
    clear_rows(&h, h.dv, h.dkv_ld, a->T);
  }
  if (a->rel_bias) add_bias_gradient(x, &p);
  if (p.group > 1) add_shared_gradients(x, &p);
}

void ch_threaded_fill_attention(ch_ops *ops) {
  ops->attention = attention;
  ops->attention_backward = attention_backward;
}
