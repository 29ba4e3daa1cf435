/* Exact GELU and gated linear units without libm: Phi from one polynomial and one exp, branch-free, so that loops
 * vectorize. */
#include "cpu/simd/fill.h"
#include "cpu/simd/vexp.h"

/* Phi and phi, the normal distribution function and its density, share exp(-x^2/2):
 *   Phi(-z) = exp(-z^2/2) R(z) for z >= 0,
 * R by a polynomial in 2z/5 - 1, minimax in relative error (1.3e-7) on [0,5]. Beyond 5, R stays at R(5): Phi(-z) is
 * below 3e-7 there and the error of gelu below 2e-8. So the left tail keeps relative accuracy, where 1 + erf would
 * cancel. Infinite x: exp is 0 and x Phi(x) is infinity or, as 0 * infinity, NaN. */
typedef struct {
  float cdf, density;
} normal;

static inline normal normal_at(float x) {
  float z = fabsf(x), s = z < 5.0f ? z * 0.4f - 1.0f : 1.0f;
  float r = -3.50074735e-4f;
  r = r * s + 8.23285469e-4f;
  r = r * s - 5.16935348e-4f;
  r = r * s + 7.10482534e-4f;
  r = r * s - 2.78802528e-3f;
  r = r * s + 5.47189083e-3f;
  r = r * s - 8.85772169e-3f;
  r = r * s + 1.50443670e-2f;
  r = r * s - 2.51294134e-2f;
  r = r * s + 3.97785338e-2f;
  r = r * s - 5.98633565e-2f;
  r = r * s + 8.52997091e-2f;
  r = r * s - 1.14034794e-1f;
  r = r * s + 1.41331348e-1f;
  float e = ch_exp_to_88(-0.5f * x * x), tail = e * r;
  return (normal){x < 0 ? tail : 1.0f - tail, e * 0.398942280f};
}

static void value(int64_t count, const float *in, float *y) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) y[i] = in[i] * normal_at(in[i]).cdf;
}

static void slope(int64_t count, const float *in, const float *dy, float *dx) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    normal at = normal_at(in[i]);
    dx[i] = dy[i] * (at.cdf + in[i] * at.density);
  }
}

/* Computes GELU and its gradient from one evaluation of Phi. */
static void value_and_slope(int64_t count, const float *in, const float *dy, float *y, float *dx) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    float x = in[i], factor = dy[i];
    normal at = normal_at(x);
    y[i] = x * at.cdf;
    dx[i] = factor * (at.cdf + x * at.density);
  }
}

static void round_to(int64_t count, const float *from, ch_bf16 *to) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) to[i] = ch_bf16_round(from[i]);
}

static void widen_to(int64_t count, const ch_bf16 *from, float *to) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) to[i] = ch_bf16_value(from[i]);
}

/* Elements per block: arrays that are rounded go through buffers in L1. */
enum { BLOCK = 1024 };

/* Pre-activations of a block: c if a product has just computed them, else the stored ones. Rounding c like the stored
 * values makes both give identical bits. */
static const float *pre_activations(const ch_activate_args *a, const float *c, int64_t first, int64_t count,
                                    float *buffer) {
  if (!a->x16) return c ? c : a->x + first;
  if (c) round_to(count, c, a->x16 + first);
  widen_to(count, a->x16 + first, buffer);
  return buffer;
}

static void block(const ch_activate_args *a, const float *c, int64_t first, int64_t count) {
  float x_buffer[BLOCK], y_buffer[BLOCK], dx_buffer[BLOCK];
  int backward = a->dx || a->dx16;
  const float *x = pre_activations(a, backward ? NULL : c, first, count, x_buffer);
  float *y = a->y16 ? y_buffer : a->y ? a->y + first : NULL;
  if (!backward) {
    value(count, x, y);
  } else {
    const float *dy = c ? c : a->dy + first;
    float *dx = a->dx16 ? dx_buffer : a->dx + first;
    if (y)
      value_and_slope(count, x, dy, y, dx);
    else
      slope(count, x, dy, dx);
  }
  if (a->y16) round_to(count, y, a->y16 + first);
  if (a->dx16) round_to(count, dx_buffer, a->dx16 + first);
}

/* Value and slope of the gate's activation. */
typedef struct {
  float value, slope;
} gelu_lanes;

static inline gelu_lanes curve_at(int silu, float g) {
  if (silu) {
    float share = ch_sigmoid(g), value = g * share;
    return (gelu_lanes){value, share + value * (1 - share)};
  }
  normal at = normal_at(g);
  return (gelu_lanes){g * at.cdf, at.cdf + g * at.density};
}

/* Inlining makes `silu` a constant of each loop. Every element's inputs are read before its outputs are written, so
 * outputs may overwrite inputs. */
static inline __attribute__((always_inline)) void glu_values(int silu, int64_t count, const float *g, const float *u,
                                                             float *y) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) y[i] = curve_at(silu, g[i]).value * u[i];
}

static inline __attribute__((always_inline)) void glu_slopes(int silu, int64_t count, const float *g, const float *u,
                                                             const float *dy, float *y, float *dx, float *du) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    float factor = u[i], straight = dy[i];
    gelu_lanes at = curve_at(silu, g[i]);
    if (y) y[i] = at.value * factor;
    dx[i] = straight * factor * at.slope;
    du[i] = straight * at.value;
  }
}

/* Gated activation of a block; c: u, or dy in backward. */
static inline __attribute__((always_inline)) void gated(int silu, const ch_activate_args *a, const float *c,
                                                        int64_t first, int64_t count) {
  const float *g = a->x + first;
  float *y = a->y ? a->y + first : NULL;
  if (a->dx)
    glu_slopes(silu, count, g, a->u + first, c ? c : a->dy + first, y, a->dx + first, a->du + first);
  else
    glu_values(silu, count, g, c ? c : a->u + first, y);
}

void CH_SIMD(ch_activate_elements)(const ch_activate_args *a, const float *c, int64_t first, int64_t count) {
  if (a->activation == CH_SWIGLU) {
    gated(1, a, c, first, count);
  } else if (a->activation == CH_GEGLU) {
    gated(0, a, c, first, count);
  } else {
    for (int64_t i = 0; i < count; i += BLOCK)
      block(a, c ? c + i : NULL, first + i, count - i < BLOCK ? count - i : BLOCK);
  }
}

static void in_pieces(const ch_exec *x, const ch_activate_args *a) {
  int64_t count = ch_elements(a->count, a->rows), pieces = ch_pieces(count, CH_PIECE);
#pragma omp parallel for num_threads(x->threads) if (pieces > 1)
  for (int64_t p = 0; p < pieces; p++) {
    int64_t begin = p * CH_PIECE, end = ch_piece_end(p, count, CH_PIECE);
    CH_SIMD(ch_activate_elements)(a, NULL, begin, end - begin);
  }
}

CH_SIMD_OP(activate_backward) { in_pieces(x, a); }

CH_SIMD_OP(activate) {
  ch_activate_args forward = *a; /* copy without the backward fields */
  forward.dx = NULL;
  forward.dx16 = NULL;
  in_pieces(x, &forward);
}
