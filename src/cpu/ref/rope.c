/* Reference: rotary position embedding. Memory-bound, so all host backends use it. */
#include <math.h>

#include "cpu/ref/ref.h"

enum { PIECE = 4096 }; /* min elements for a second thread */

/* Rotates one head of one row. */
static void rotate_head(int half, const real *restrict cosine, const real *restrict sine, real *restrict x,
                        real *restrict y) {
#pragma omp simd
  for (int c = 0; c < half; c++) {
    real a = x[c], b = y[c];
    x[c] = a * cosine[c] - b * sine[c];
    y[c] = b * cosine[c] + a * sine[c];
  }
}

static void rotate_head_back(int half, const real *restrict cosine, const real *restrict sine, real *restrict x,
                             real *restrict y) {
#pragma omp simd
  for (int c = 0; c < half; c++) {
    real a = x[c], b = y[c];
    x[c] = a * cosine[c] + b * sine[c];
    y[c] = b * cosine[c] - a * sine[c];
  }
}

CH_REF_OP(rope) {
  int half = a->rotated / 2;
#pragma omp parallel for num_threads(x->threads) if (a->n * a->heads * a->dh > PIECE)
  for (int64_t t = 0; t < a->n; t++) {
    const real *rotation = a->rope_table + (a->position ? a->position[t] : t % a->T) * a->rotated;
    for (int head = 0; head < a->heads; head++) {
      real *row = a->x + (t * a->heads + head) * a->dh;
      (a->back ? rotate_head_back : rotate_head)(half, rotation, rotation + half, row, row + half);
    }
  }
}

/* Angles in double: in float, angles of large positions would have errors beyond rounding. */
CH_REF_OP(rope_table) {
  int half = a->rotated / 2;
#pragma omp parallel for num_threads(x->threads)
  for (int c = 0; c < half; c++) {
    double frequency = pow(a->theta, -2.0 * c / a->rotated);
    for (int64_t p = 0; p < a->positions; p++) {
      a->rope_table[p * a->rotated + c] = (real)cos((double)p * frequency);
      a->rope_table[p * a->rotated + half + c] = (real)sin((double)p * frequency);
    }
  }
}
