/* Products with 8-bit matrices in plain C: the reference semantics of gemm's b8 (cpu/simd/q8.h). */
#include <math.h>
#include <string.h>

#include "base/real.h"
#include "cpu/ref/ref.h"

/* Quantizes a block to bytes; returns its scale. */
static float round_block(const float x[CH_Q8_VALUES], int8_t q[CH_Q8_VALUES]) {
  const float min = 0x1p-100f;
  float max = 0;
  int finite = 1;
  memset(q, 0, CH_Q8_VALUES);
  for (int i = 0; i < CH_Q8_VALUES; i++) {
    finite &= isfinite(x[i]) != 0;
    max = fmaxf(max, fabsf(x[i]));
  }
  if (!finite) return (float)NAN;
  if (max < min) return 0;
  float inverse = 127 / max;
  for (int i = 0; i < CH_Q8_VALUES; i++) q[i] = (int8_t)nearbyintf(x[i] * inverse);
  return max / 127;
}

/* sum[o] += dot product of a row's block with the block of output o of a panel. */
static void add_block(const real *x, int64_t count, const ch_q8 *bytes, const ch_q8 *scales, float sum[CH_Q8_OUTPUTS]) {
  float values[CH_Q8_VALUES] = {0};
  int8_t q[CH_Q8_VALUES];
  for (int64_t i = 0; i < count; i++) values[i] = (float)x[i];
  float row_scale = round_block(values, q);
  for (int o = 0; o < CH_Q8_OUTPUTS; o++) {
    uint16_t scale;
    int32_t n = 0;
    memcpy(&scale, scales + 2 * o, sizeof scale);
    for (int i = 0; i < CH_Q8_VALUES; i++) n += q[i] * (int8_t)bytes[ch_q8_place(i) + 4 * o];
    float scaled = (float)n * row_scale, term = scaled * ch_half_value(scale);
    sum[o] += term;
  }
}

static void row_with_panel(const ch_gemm_args *g, const real *row, int64_t panel, real *c) {
  const ch_q8 *scales = CH_AS_HOST(const ch_q8, g->b8) + panel * ch_q8_panel_bytes(g->k);
  const ch_q8 *bytes = scales + ch_q8_scale_bytes(g->k);
  float sum[CH_Q8_OUTPUTS] = {0}, alpha = g->alpha ? (float)g->alpha : 1;
  for (int64_t b = 0; b < ch_q8_blocks(g->k); b++) {
    int64_t first = b * CH_Q8_VALUES, left = g->k - first;
    add_block(row + first, left < CH_Q8_VALUES ? left : CH_Q8_VALUES, bytes + b * CH_Q8_BLOCK,
              scales + b * CH_Q8_OUTPUTS * 2, sum);
  }
  for (int64_t o = 0, j = panel * CH_Q8_OUTPUTS; o < CH_Q8_OUTPUTS && j < g->n; o++, j++) {
    real product = (real)(alpha * sum[o]);
    c[j] = g->accumulate ? c[j] + product : product;
  }
}

void ch_ref_q8_rows(const ch_gemm_args *g, int64_t begin, int64_t end) {
  int64_t lda = g->lda ? g->lda : g->k, ldc = g->ldc ? g->ldc : g->n;
  for (int64_t i = begin; i < end; i++)
    for (int64_t panel = 0; panel < ch_q8_panels(g->n); panel++)
      row_with_panel(g, g->a + i * lda, panel, g->c + i * ldc);
}
