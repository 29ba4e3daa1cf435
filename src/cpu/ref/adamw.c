/* Reference: AdamW, in double. */
#include <math.h>

#include "cpu/ref/ref.h"

CH_REF_OP(adamw) {
  if (a->finite && !isfinite(*a->finite)) return;
  double correct_m = 1 - pow(a->beta1, (double)a->step), correct_v = 1 - pow(a->beta2, (double)a->step);
#pragma omp parallel for num_threads(x->threads)
  for (int64_t i = 0; i < a->count; i++) {
    double g = (double)a->g[i] * a->grad_scale, w = (double)a->w[i];
    a->m[i] = (real)(a->beta1 * (double)a->m[i] + (1 - a->beta1) * g);
    a->v[i] = (real)(a->beta2 * (double)a->v[i] + (1 - a->beta2) * g * g);
    double step = (double)a->m[i] / correct_m / (sqrt((double)a->v[i] / correct_v) + a->eps);
    a->w[i] = (real)(w - a->learning_rate * (step + a->weight_decay * w));
    if (a->w16) a->w16[i] = ch_bf16_round((float)a->w[i]);
  }
}
