#include "base/q8.h"

#include <math.h>
#include <string.h>

/* Rounds a scale (0 .. 65504) to IEEE half precision, to nearest, ties to even. */
static uint16_t half_of(float x) {
  if (!(x > 0)) return 0;
  if (x >= 65504) return 0x7BFF;
  int exponent;
  double fraction = frexpf(x, &exponent);                       /* [0.5,1) 2^exponent */
  if (exponent < -13) return (uint16_t)nearbyint(ldexp(x, 24)); /* subnormal: multiples of 2^-24 */
  return (uint16_t)(((exponent + 13) << 10) + (int)nearbyint((fraction * 2) * 1024));
}

/* As ggml's reference rounds. */
static uint16_t round_values(const float x[CH_Q8_VALUES], float max, int8_t q[CH_Q8_VALUES]) {
  float scale = max / 127, inverse = scale >= 0x1p-126f ? 1 / scale : 0; /* otherwise the inverse would be infinite */
  for (int i = 0; i < CH_Q8_VALUES; i++) {
    double value = (double)(x[i] * inverse); /* roundf, vectorizable: the sum below is exact */
    q[i] = (int8_t)(value < 0 ? value - 0.5 : value + 0.5);
  }
  return half_of(scale);
}

static int32_t common_divisor(int32_t a, int32_t b) {
  while (b) {
    int32_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

static int has_values(float scale, const int8_t q[CH_Q8_VALUES], const float x[CH_Q8_VALUES]) {
  int same = 1;
  for (int i = 0; i < CH_Q8_VALUES; i++) same &= scale * (float)q[i] == x[i];
  return same;
}

/* The scale of a block that represents these values exactly with bytes of magnitude <= steps: their greatest common
 * divisor, or a fraction of it that half precision can represent. 0: none. */
static float exact_scale(const float x[CH_Q8_VALUES], float max, int steps) {
  int32_t divisor = 0;
  int exponent;
  frexpf(max, &exponent);
  const double unit = ldexp(1, exponent - 24); /* the values of such a block are multiples of this: 11 bits times 8 */
  for (int i = 0; i < CH_Q8_VALUES; i++) {
    double units = fabs((double)x[i]) / unit;
    if ((double)(int32_t)units != units) return 0;
    divisor = common_divisor(divisor, (int32_t)units);
    if (divisor && max / unit / divisor > steps) return 0;
  }
  for (int parts = 1; max / unit / divisor * parts <= steps; parts++) {
    float scale = (float)(divisor * unit / parts);
    if (divisor % parts == 0 && ch_half_value(half_of(scale)) == scale) return scale;
  }
  return 0;
}

uint16_t ch_q8_round(const float x[CH_Q8_VALUES], int8_t q[CH_Q8_VALUES]) {
  float low = 0, high = 0;
  for (int i = 0; i < CH_Q8_VALUES; i++) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  float max = high > -low ? high : -low;
  uint16_t scale = round_values(x, max, q);
  if (has_values(ch_half_value(scale), q, x)) return scale;
  float exact = exact_scale(x, max, high == max ? INT8_MAX : -INT8_MIN);
  if (!(exact > 0)) return scale;
  for (int i = 0; i < CH_Q8_VALUES; i++) q[i] = (int8_t)(x[i] / exact);
  return half_of(exact);
}

/* Reads a block's values; zeros beyond the matrix. */
static void take_block(const ch_q8_values *m, int64_t output, int64_t block, float x[CH_Q8_VALUES]) {
  int64_t first = block * CH_Q8_VALUES, left = output < m->outputs ? m->depth - first : 0;
  for (int i = 0; i < CH_Q8_VALUES; i++) x[i] = i < left ? (float)m->x[output * m->output + (first + i) * m->input] : 0;
}

int64_t ch_q8_first_unfit(const real *x, int64_t count) {
  int bad = 0;
  int64_t at = 0;
  for (int64_t i = 0; i < count; i++) bad |= !(fabs((double)x[i]) <= (double)CH_Q8_MAX);
  while (bad && fabs((double)x[at]) <= (double)CH_Q8_MAX) at++;
  return bad ? at : count;
}

void ch_q8_pack(const ch_q8_values *from, int64_t panel, ch_q8 *to) {
  ch_q8 *bytes = to + ch_q8_scale_bytes(from->depth);
  memset(to, 0, (size_t)ch_q8_scale_bytes(from->depth));
  for (int64_t block = 0; block < ch_q8_blocks(from->depth); block++)
    for (int o = 0; o < CH_Q8_OUTPUTS; o++) {
      float x[CH_Q8_VALUES];
      int8_t q[CH_Q8_VALUES];
      take_block(from, panel * CH_Q8_OUTPUTS + o, block, x);
      uint16_t scale = ch_q8_round(x, q);
      memcpy(to + (block * CH_Q8_OUTPUTS + o) * 2, &scale, sizeof scale);
      for (int i = 0; i < CH_Q8_VALUES; i++) bytes[block * CH_Q8_BLOCK + ch_q8_place(i) + 4 * o] = (unsigned char)q[i];
    }
}

void ch_q8_unpack(const ch_q8 *from, int64_t panel, const ch_q8_values *to) {
  const ch_q8 *bytes = from + ch_q8_scale_bytes(to->depth);
  for (int64_t o = 0; o < CH_Q8_OUTPUTS && panel * CH_Q8_OUTPUTS + o < to->outputs; o++)
    for (int64_t i = 0; i < to->depth; i++) {
      uint16_t scale;
      memcpy(&scale, from + (i / CH_Q8_VALUES * CH_Q8_OUTPUTS + o) * 2, sizeof scale);
      int8_t q = (int8_t)bytes[ch_q8_place(i) + 4 * o];
      to->x[(panel * CH_Q8_OUTPUTS + o) * to->output + i * to->input] = (real)(ch_half_value(scale) * (float)q);
    }
}
