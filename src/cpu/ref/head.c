/* The tied head and its cross-entropy in plain C: logits of a few rows at a time and, if rows are paired, of their
 * partner rows. */
#include "cpu/head.h"

#include <tgmath.h>

#include "cpu/ref/ref.h"

enum { CHUNK = 64 };

/* Rows `first` .. first+rows-1 of the batch, in a chunk's buffers: logits [rows,V], loss [rows]. */
typedef struct {
  int64_t first, rows;
  real *logits;
  double *loss;
} head_span;

/* Replaces logits [V] by their softmax, or by 0 without a target; returns the loss. */
static double softmax_row(const ch_head_args *a, int32_t target, real *logits) {
  if (target < 0) {
    for (int v = 0; v < a->V; v++) logits[v] = 0;
    return 0;
  }
  real max = logits[0];
  for (int v = 1; v < a->V; v++) max = logits[v] > max ? logits[v] : max;
  double at_target = (double)(logits[target] - max), sum = 0;
  for (int v = 0; v < a->V; v++) sum += (double)(logits[v] = exp(logits[v] - max));
  for (int v = 0; v < a->V; v++) logits[v] = (real)((double)logits[v] / sum);
  return log(sum) - at_target;
}

/* Replaces probabilities p [V] by weight * d loss / d logits. */
static void loss_gradient(const ch_head_args *a, int32_t target, real weight, real *p) {
  for (int v = 0; v < a->V; v++) p[v] *= weight;
  if (target >= 0) p[target] -= weight;
}

static void forward_span(ch_exec *x, const ch_head_args *a, const head_span *s) {
  ch_gemm_args product = {.m = s->rows,
                          .n = a->V,
                          .k = a->d,
                          .trans_b = 1,
                          .a = a->x + s->first * a->d,
                          .b = a->w,
                          .b8 = a->w8,
                          .c = s->logits,
                          .alpha = a->scale};
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < s->rows; i++) {
    ch_ref_gemm_rows(&product, i, i + 1);
    for (int v = 0; a->logits && v < a->V; v++) a->logits[(s->first + i) * a->V + v] = s->logits[i * a->V + v];
  }
}

static void losses(ch_exec *x, const ch_head_args *a, const head_span *s) {
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < s->rows; i++) {
    int32_t target = a->target[s->first + i];
    s->loss[i] = softmax_row(a, target, s->logits + i * a->V);
    loss_gradient(a, target, a->weight * (real)ch_row_weight(a, s->first + i), s->logits + i * a->V);
  }
}

/* One pair: replaces logits z [V] and y [V] by gradients. With z - y = delta, A = <p, delta> and B = <q, delta>,
 * (KL(p|q) + KL(q|p)) / 2 is (A - B) / 2, its gradients (p (1 + delta - A) - q) / 2 and (q (1 - delta + B) - p) / 2. */
static double consistency_row(const ch_head_args *a, int32_t target, real *z, real *y, real *delta, double loss[2]) {
  double A = 0, B = 0, half = (double)a->consistency / 2;
  for (int v = 0; v < a->V; v++) delta[v] = z[v] - y[v];
  loss[0] = softmax_row(a, target, z);
  loss[1] = softmax_row(a, target, y);
  if (target < 0) return 0;
  for (int v = 0; v < a->V; v++) {
    A += (double)z[v] * (double)delta[v];
    B += (double)y[v] * (double)delta[v];
  }
  for (int v = 0; v < a->V; v++) {
    double p = (double)z[v], q = (double)y[v], change = (double)delta[v];
    z[v] = (real)((double)a->weight * p + half * (p * (1 + change - A) - q));
    y[v] = (real)((double)a->weight * q + half * (q * (1 - change + B) - p));
  }
  z[target] -= a->weight;
  y[target] -= a->weight;
  return (A - B) / 2;
}

/* Losses of pairs: row i of both spans. delta: scratch [rows,V]. */
static void pair_losses(ch_exec *x, const ch_head_args *a, const head_span *s, real *delta) {
  double sum[CHUNK];
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < s->rows; i++) {
    double loss[2];
    int64_t at = i * a->V;
    sum[i] = consistency_row(a, a->target[s->first + i], s[0].logits + at, s[1].logits + at, delta + at, loss);
    s[0].loss[i] = loss[0];
    s[1].loss[i] = loss[1];
  }
  for (int64_t i = 0; i < s->rows; i++) *a->consistency_sum += sum[i];
}

static void backward_span(ch_exec *x, const ch_head_args *a, const head_span *s) {
  ch_gemm_args dx = {
      .m = s->rows, .n = a->d, .k = a->V, .a = s->logits, .b = a->w, .c = a->dx + s->first * a->d, .alpha = a->scale};
  ch_gemm_args dw = {.m = a->V,
                     .n = a->d,
                     .k = s->rows,
                     .trans_a = 1,
                     .a = s->logits,
                     .b = a->x + s->first * a->d,
                     .c = a->dw,
                     .alpha = a->scale,
                     .accumulate = a->accumulate || s->first > 0};
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < s->rows; i++) ch_ref_gemm_rows(&dx, i, i + 1);
#pragma omp parallel for num_threads(x->threads)
  for (int v = 0; v < a->V; v++) ch_ref_gemm_rows(&dw, v, v + 1);
}

static void head_chunk(ch_exec *x, const ch_head_args *a, head_span *s, real *delta) {
  int spans = a->paired ? 2 : 1;
  for (int h = 0; h < spans; h++) forward_span(x, a, &s[h]);
  if (a->paired)
    pair_losses(x, a, s, delta);
  else
    losses(x, a, s);
  for (int h = 0; h < spans; h++) {
    for (int64_t i = 0; i < s[h].rows; i++) {
      *a->loss_sum += ch_row_weight(a, s[h].first + i) * s[h].loss[i];
      if (a->token_loss) a->token_loss[s[h].first + i] = (float)s[h].loss[i];
    }
    if (a->dx) backward_span(x, a, &s[h]);
  }
}

CH_REF_SCRATCH_OP(head) {
  CH_SCRATCH(x);
  int64_t n = a->paired ? a->n / 2 : a->n, size = (int64_t)CHUNK * a->V;
  real *logits = CH_NEW(&x->scratch, real, a->paired ? 3 * size : size);
  double loss[2 * CHUNK];
  if (ch_counting(x)) return;
  *a->loss_sum = 0;
  if (a->paired) *a->consistency_sum = 0;
  int64_t first = 0;
  do { /* runs once even without rows, to set dw */
    int64_t rows = n - first < CHUNK ? n - first : CHUNK;
    head_span s[2] = {{first, rows, logits, loss}, {n + first, rows, logits + size, loss + CHUNK}};
    head_chunk(x, a, s, logits + 2 * size);
  } while ((first += CHUNK) < n);
  if (a->loss_total) *a->loss_total += *a->loss_sum;
}
