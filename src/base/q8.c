#include "base/q8.h"

#include <math.h>
#include <string.h>

/* IEEE half precision, nearest, halves to even, of scales: not negative and at most 65504. */
static uint16_t half_of(float x) {
  if (!(x > 0)) return 0;
  if (x >= 65504) return 0x7BFF;
  int exponent;
  double fraction = frexpf(x, &exponent);                       /* [0.5,1) 2^exponent */
  if (exponent < -13) return (uint16_t)nearbyint(ldexp(x, 24)); /* subnormal: multiples of 2^-24 */
  return (uint16_t)(((exponent + 13) << 10) + (int)nearbyint((fraction * 2) * 1024));
}

uint16_t ch_q8_round(const float x[CH_Q8_VALUES], int8_t q[CH_Q8_VALUES]) {
  float most = 0;
  for (int i = 0; i < CH_Q8_VALUES; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
  float scale = most / 127, inverse = scale >= 0x1p-126f ? 1 / scale : 0; /* below it would be infinite */
  for (int i = 0; i < CH_Q8_VALUES; i++) {
    double value = (double)(x[i] * inverse); /* the sum below is exact: roundf, but as vector code */
    q[i] = (int8_t)(value < 0 ? value - 0.5 : value + 0.5);
  }
  return half_of(scale);
}

/* A block's values, zeros where the matrix has none. */
static void take_block(const ch_q8_values *m, int64_t output, int64_t block, float x[CH_Q8_VALUES]) {
  int64_t first = block * CH_Q8_VALUES, left = output < m->outputs ? m->depth - first : 0;
  for (int i = 0; i < CH_Q8_VALUES; i++) x[i] = i < left ? (float)m->x[output * m->output + (first + i) * m->input] : 0;
}

int ch_q8_pack(const ch_q8_values *from, int64_t panel, ch_q8 *to, int64_t *at) {
  ch_q8 *bytes = to + ch_q8_scale_bytes(from->depth);
  memset(to, 0, (size_t)ch_q8_scale_bytes(from->depth));
  for (int64_t block = 0; block < ch_q8_blocks(from->depth); block++)
    for (int o = 0; o < CH_Q8_OUTPUTS; o++) {
      float x[CH_Q8_VALUES];
      int8_t q[CH_Q8_VALUES];
      int64_t output = panel * CH_Q8_OUTPUTS + o;
      take_block(from, output, block, x);
      for (int i = 0; i < CH_Q8_VALUES; i++)
        if (!(fabsf(x[i]) <= CH_Q8_MOST))
          return *at = output * from->output + (block * CH_Q8_VALUES + i) * from->input, 1;
      uint16_t scale = ch_q8_round(x, q);
      memcpy(to + (block * CH_Q8_OUTPUTS + o) * 2, &scale, sizeof scale);
      for (int i = 0; i < CH_Q8_VALUES; i++) bytes[block * CH_Q8_BLOCK + ch_q8_place(i) + 4 * o] = (unsigned char)q[i];
    }
  return 0;
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
