/* A block of a product's output, written to where it belongs past the caches. */
#include <string.h>

#include "cpu/simd/product.h"
#include "cpu/simd/vector.h"

void CH_SIMD(ch_product_write)(int64_t rows, int64_t columns, const float *x, float *y, int64_t ldy) {
  int aligned = ldy % CH_LANES == 0 && (uintptr_t)y % CH_VECTOR_BYTES == 0;
  int64_t whole = aligned ? columns / CH_LANES * CH_LANES : 0;
  for (int64_t i = 0; i < rows; i++, x += columns, y += ldy) {
    for (int64_t j = 0; j < whole; j += CH_LANES) ch_store_past(y + j, ch_load(x + j));
    memcpy(y + whole, x + whole, (size_t)(columns - whole) * sizeof *y);
  }
  ch_store_past_end();
}
