/* Reference: dropout. One 64-bit random number is used for four elements. */
#include "base/rng.h"
#include "cpu/ref/ref.h"

CH_REF_OP(dropout) {
  enum { PIECE = 4096 }; /* a multiple of four */
  uint64_t dropped = (uint64_t)(a->rate * 0x1p16 + 0.5);
  ch_rng rng = ch_rng_make(a->seed, CH_STREAM_DROPOUT, a->place);
  real scale = (real)(0x1p16 / (0x1p16 - (double)dropped));
#pragma omp parallel for schedule(static) num_threads(x->threads)
  for (int64_t piece = 0; piece < a->count; piece += PIECE) {
    uint64_t bits = 0;
    for (int64_t i = piece; i < a->count && i < piece + PIECE; i++, bits >>= 16) {
      uint64_t number = (uint64_t)(a->first + i);
      if (number % 4 == 0 || i == piece) bits = ch_rng_bits(rng, a->draw << 32 | number / 4) >> 16 * (number % 4);
      real y = a->x[i] * ((bits & 0xFFFF) < dropped ? 0 : scale); /* NaN stays NaN */
      a->y[i] = a->accumulate ? a->y[i] + y : y;
    }
  }
}
