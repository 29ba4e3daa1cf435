/* Writes the sums of a product: scaled by alpha, then stored or added. Every kernel uses these functions, so that the
 * split of a product changes no bit. */
#ifndef CH_CPU_SIMD_WRITE_H
#define CH_CPU_SIMD_WRITE_H

#include "cpu/simd/problem.h"
#include "cpu/simd/vector.h"

/* Whether all vectors of an output are aligned, as ch_store_past requires. */
static inline int ch_write_aligned(const float *c, int64_t ldc) {
  return ldc % CH_LANES == 0 && (uintptr_t)c % CH_VECTOR_BYTES == 0;
}

static inline void ch_write_vector(const ch_problem *q, ch_vector sum, float *c, int add, int streams) {
  ch_vector value = q->alpha * sum;
  if (add) value = ch_vector_fma(ch_splat(q->alpha), sum, ch_load(c));
  if (streams)
    ch_store_past(c, value);
  else
    ch_store(c, value);
}

/* Writes `rows` x `columns` of a tile whose rows are `ld` floats apart. */
static inline void ch_write_part(const ch_problem *q, const float *tile, int64_t ld, float *c, int64_t rows,
                                 int64_t columns, int add) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t l = 0; l < columns; l++) {
      float sum = tile[r * ld + l], *at = c + r * q->ldc + l;
      *at = add ? ch_fma(q->alpha, sum, *at) : q->alpha * sum;
    }
}

#endif
