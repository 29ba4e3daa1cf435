/* Vectorized AdamW: one pass over w, g, m and v. */
#include <math.h>

#include "cpu/simd/fill.h"

static void adamw_piece(const ch_adamw_args *a, int64_t begin, int64_t end) {
  const float *g = a->g;
  float *w = a->w, *m = a->m, *v = a->v;
  float scale = (float)a->grad_scale, keep_m = (float)a->beta1, take_m = (float)(1 - a->beta1);
  float keep_v = (float)a->beta2, take_v = (float)(1 - a->beta2), eps = (float)a->eps;
  float step = (float)(a->learning_rate / (1 - pow(a->beta1, (double)a->step))),
        decay = (float)(a->learning_rate * a->weight_decay);
  float correct_v = (float)(1 / sqrt(1 - pow(a->beta2, (double)a->step)));
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    float gradient = g[i] * scale;
    m[i] = keep_m * m[i] + take_m * gradient;
    v[i] = keep_v * v[i] + take_v * gradient * gradient;
    w[i] -= decay * w[i] + step * m[i] / (sqrtf(v[i]) * correct_v + eps);
  }
  if (!a->w16) return;
  ch_bf16 *w16 = a->w16;
#pragma omp simd
  for (int64_t i = begin; i < end; i++) w16[i] = ch_bf16_round(w[i]);
}

CH_SIMD_OP(adamw) {
  if (a->finite && !isfinite(*a->finite)) return;
  int64_t pieces = ch_pieces(a->count, CH_PIECE);
#pragma omp parallel for num_threads(x->threads) if (pieces > 1)
  for (int64_t p = 0; p < pieces; p++) adamw_piece(a, p * CH_PIECE, ch_piece_end(p, a->count, CH_PIECE));
}
