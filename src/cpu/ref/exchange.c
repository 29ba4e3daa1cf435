/* Reference: the cheapest exchange between two experts, a step of the exact assignment. */
#include <math.h>

#include "cpu/ref/ref.h"

CH_REF_OP(exchange) {
  for (int64_t j = 0; j < a->ld; j++) {
    a->cost[j] = INFINITY;
    a->carrier[j] = -1;
    for (int i = 0; i < a->rows; i++) {
      int64_t row = a->row[i] * a->ld;
      double loss = (double)a->score[row + a->from] - (double)a->open[row + j];
      if (loss < a->cost[j]) {
        a->cost[j] = loss;
        a->carrier[j] = a->row[i];
      }
    }
  }
}
