/* .npy: any bytes are read, as any type, or refused; the array is as large as its shape says. */
#include <stdlib.h>

#include "npy/npy.h"

static volatile unsigned sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const size_t sizes[] = {4, 8, 4, 8, 1};
  for (int type = 0; type < 5; type++) {
    ch_npy array;
    if (ch_npy_parse(data, size, "input", (ch_npy_type)type, 0, &array)) continue;
    size_t bytes = sizes[type];
    for (int i = 0; i < array.dims; i++) bytes *= (size_t)array.shape[i];
    for (size_t k = 0; k < bytes; k++) sink += ((const uint8_t *)array.data)[k];
    ch_npy_free(&array);
  }
  return 0;
}
