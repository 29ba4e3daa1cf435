/* The tied head and its cross-entropy in plain C: logits of a few rows at a time. */
#include <tgmath.h>

#include "cpu/ref.h"

enum { CHUNK = 64 };

/* The loss of one row of logits, which turn into weight * d loss / d logits. */
static double loss_row(const ch_head_args *a, int32_t target, real *logits) {
  if (target < 0) {
    for (int v = 0; v < a->V; v++) logits[v] = 0;
    return 0;
  }
  real max = logits[0];
  for (int v = 1; v < a->V; v++) max = logits[v] > max ? logits[v] : max;
  double at_target = (double)(logits[target] - max), sum = 0;
  for (int v = 0; v < a->V; v++) sum += (double)(logits[v] = exp(logits[v] - max));
  for (int v = 0; v < a->V; v++) logits[v] *= (real)((double)a->weight / sum);
  logits[target] -= a->weight;
  return log(sum) - at_target;
}

/* Rows first .. first+rows-1, whose logits fill `logits`, and whose losses go to `loss`. */
static void head_chunk(ch_exec *x, const ch_head_args *a, int64_t first, int64_t rows, real *logits, double *loss) {
  const real *in = a->x + first * a->d;
  ch_gemm_args forward = {
      .m = rows, .n = a->V, .k = a->d, .trans_b = 1, .a = in, .b = a->w, .c = logits, .alpha = a->scale};
  ch_gemm_args dx = {
      .m = rows, .n = a->d, .k = a->V, .a = logits, .b = a->w, .c = a->dx + first * a->d, .alpha = a->scale};
  ch_gemm_args dw = {.m = a->V,
                     .n = a->d,
                     .k = rows,
                     .trans_a = 1,
                     .a = logits,
                     .b = in,
                     .c = a->dw,
                     .alpha = a->scale,
                     .accumulate = 1};
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < rows; i++) {
    real *row = logits + i * a->V;
    ch_ref_gemm_rows(&forward, i, i + 1);
    for (int v = 0; a->logits && v < a->V; v++) a->logits[(first + i) * a->V + v] = row[v];
    loss[i] = loss_row(a, a->target[first + i], row);
    if (a->dx) ch_ref_gemm_rows(&dx, i, i + 1);
  }
  if (!a->dx) return;
#pragma omp parallel for num_threads(x->threads)
  for (int v = 0; v < a->V; v++) ch_ref_gemm_rows(&dw, v, v + 1);
}

static void head(ch_exec *x, const ch_head_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  real *logits = CH_NEW(&x->scratch, real, (int64_t)CHUNK * a->V);
  double loss[CHUNK];
  if (!ch_counting(x)) {
    *a->loss_sum = 0;
    for (int64_t first = 0; first < a->n; first += CHUNK) {
      int64_t rows = a->n - first < CHUNK ? a->n - first : CHUNK;
      head_chunk(x, a, first, rows, logits, loss);
      for (int64_t i = 0; i < rows; i++) {
        *a->loss_sum += loss[i];
        if (a->token_loss) a->token_loss[first + i] = (float)loss[i];
      }
    }
  }
  ch_arena_release(&x->scratch, mark);
}

void ch_ref_fill_head(ch_ops *ops) { ops->head = head; }
