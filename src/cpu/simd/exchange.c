/* Op `exchange`: two vectors of columns at a time over all rows, so that costs and carriers stay in registers.
 * Differences are in double, so that every instruction set finds the same result. */
#include <math.h>

#include "cpu/simd/fill.h"
#include "cpu/simd/vector.h"

enum { WIDE = CH_LANES / 2 }; /* doubles per vector */
typedef double wide __attribute__((vector_size(WIDE * sizeof(double)), aligned(8), may_alias));
typedef int64_t wide_mask __attribute__((vector_size(WIDE * sizeof(int64_t)), aligned(8), may_alias));
typedef float narrow __attribute__((vector_size(WIDE * sizeof(float)), aligned(4), may_alias));

static inline wide where(wide_mask m, wide a, wide b) { return (wide)(((wide_mask)a & m) | ((wide_mask)b & ~m)); }

/* Two independent chains of comparisons. */
static void pair_of_vectors(const ch_exchange_args *a, int64_t column) {
  const float *score = a->score + a->from, *open = a->open + column;
  const int *row = a->row;
  int64_t ld = a->ld, rows = a->rows;
  wide cost0 = (wide){0} + INFINITY, cost1 = cost0;
  wide_mask who0 = (wide_mask){0} - 1, who1 = who0;
  for (int64_t i = 0; i < rows; i++) {
    int64_t r = row[i];
    wide mine = (wide){0} + (double)score[r * ld];
    const float *other = open + r * ld;
    wide loss0 = mine - __builtin_convertvector(*(const narrow *)other, wide);
    wide loss1 = mine - __builtin_convertvector(*(const narrow *)(other + WIDE), wide);
    wide_mask less0 = loss0 < cost0, less1 = loss1 < cost1;
    cost0 = where(less0, loss0, cost0);
    cost1 = where(less1, loss1, cost1);
    wide_mask index = (wide_mask){0} + r;
    who0 = (index & less0) | (who0 & ~less0);
    who1 = (index & less1) | (who1 & ~less1);
  }
  *(wide *)(a->cost + column) = cost0;
  *(wide *)(a->cost + column + WIDE) = cost1;
  for (int l = 0; l < WIDE; l++) {
    a->carrier[column + l] = (int)who0[l];
    a->carrier[column + WIDE + l] = (int)who1[l];
  }
}

CH_SIMD_OP(exchange) {
  for (int64_t column = 0; column < a->ld; column += 2 * WIDE) pair_of_vectors(a, column);
}
