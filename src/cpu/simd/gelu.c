/* Exact GELU and GEGLU without libm: Phi from one polynomial and one exp, straight-line, so that loops vectorise. */
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

/* Elements begin .. end-1 of what is computed, to y[0], dx[0], ...; NULL: not asked for. */
typedef void part(const ch_gelu_args *a, int64_t begin, int64_t end, float *y, float *dx);

static void gelu_part(const ch_gelu_args *a, int64_t begin, int64_t end, float *y, float *dx) {
  (void)dx;
  const float *in = a->x;
#pragma omp simd
  for (int64_t i = begin; i < end; i++) y[i - begin] = in[i] * normal_at(in[i]).cdf;
}

static void slope_part(const ch_gelu_args *a, int64_t begin, int64_t end, float *y, float *dx) {
  (void)y;
  const float *in = a->x, *dy = a->dy;
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    normal at = normal_at(in[i]);
    dx[i - begin] = dy[i] * (at.cdf + in[i] * at.density);
  }
}

/* Both by one evaluation. */
static void value_and_slope_part(const ch_gelu_args *a, int64_t begin, int64_t end, float *y, float *dx) {
  const float *in = a->x, *dy = a->dy;
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    float value = in[i], slope = dy[i];
    normal at = normal_at(value);
    y[i - begin] = value * at.cdf;
    dx[i - begin] = slope * (at.cdf + value * at.density);
  }
}

static void round_to(const float *from, int64_t count, ch_bf16 *to) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) to[i] = ch_bf16_round(from[i]);
}

/* A part that is rounded on the way out, by way of blocks that stay in the cache. */
static void rounded_part(const ch_gelu_args *a, part *run, int64_t begin, int64_t end) {
  enum { BLOCK = 1024 };
  for (int64_t stop; begin < end; begin = stop) {
    float y[BLOCK], dx[BLOCK];
    stop = begin + BLOCK < end ? begin + BLOCK : end;
    run(a, begin, stop, y, dx);
    if (a->y16) round_to(y, stop - begin, a->y16 + begin);
    if (a->dx16) round_to(dx, stop - begin, a->dx16 + begin);
  }
}

static void in_parts(ch_exec *x, const ch_gelu_args *a, part *run) {
  int64_t count = ch_elements(a->count, a->rows), pieces = ch_pieces(count, CH_PIECE);
#pragma omp parallel for num_threads(x->threads) if (pieces > 1)
  for (int64_t p = 0; p < pieces; p++) {
    int64_t begin = p * CH_PIECE, end = ch_piece_end(p, count, CH_PIECE);
    if (a->y16 || a->dx16)
      rounded_part(a, run, begin, end);
    else
      run(a, begin, end, a->y ? a->y + begin : NULL, a->dx ? a->dx + begin : NULL);
  }
}

static void gelu(ch_exec *x, const ch_gelu_args *a) {
  ch_gelu_args forward = *a; /* whatever it says of backward */
  forward.dx16 = NULL;
  if (!ch_counting(x)) in_parts(x, &forward, gelu_part);
}

static void gelu_backward(ch_exec *x, const ch_gelu_args *a) {
  if (!ch_counting(x)) in_parts(x, a, a->y || a->y16 ? value_and_slope_part : slope_part);
}

static void geglu(ch_exec *x, const ch_gelu_args *a) {
  if (ch_counting(x)) return;
  int64_t count = ch_elements(a->count, a->rows), pieces = ch_pieces(count, CH_PIECE);
#pragma omp parallel for num_threads(x->threads) if (pieces > 1)
  for (int64_t p = 0; p < pieces; p++) {
    const float *in = a->x, *u = a->u;
    float *y = a->y;
    int64_t end = ch_piece_end(p, count, CH_PIECE);
#pragma omp simd
    for (int64_t i = p * CH_PIECE; i < end; i++) y[i] = in[i] * normal_at(in[i]).cdf * u[i];
  }
}

/* Every input of an element is read before an output is written: outputs may stand where inputs do. */
static void geglu_backward(ch_exec *x, const ch_gelu_args *a) {
  if (ch_counting(x)) return;
  int64_t count = ch_elements(a->count, a->rows), pieces = ch_pieces(count, CH_PIECE);
#pragma omp parallel for num_threads(x->threads) if (pieces > 1)
  for (int64_t p = 0; p < pieces; p++) {
    const float *in = a->x, *u = a->u, *dy = a->dy;
    float *y = a->y, *dx = a->dx, *du = a->du;
    int64_t end = ch_piece_end(p, count, CH_PIECE);
#pragma omp simd
    for (int64_t i = p * CH_PIECE; i < end; i++) {
      float g = in[i], factor = u[i], straight = dy[i];
      normal at = normal_at(g);
      float value = g * at.cdf;
      if (y) y[i] = value * factor;
      dx[i] = straight * factor * (at.cdf + g * at.density);
      du[i] = straight * value;
    }
  }
}

void CH_SIMD(ch_fill_gelu)(ch_ops *ops) {
  ops->gelu = gelu;
  ops->gelu_backward = gelu_backward;
  ops->geglu = geglu;
  ops->geglu_backward = geglu_backward;
}
