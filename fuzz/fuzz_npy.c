/* .npy, and tables as text: any bytes are read, as any type, or refused; the array is as large as its shape says. */
#include <stdlib.h>
#include <string.h>

#include "npy/npy.h"

static volatile unsigned sink;

static void read_table(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1);
  ch_npy array;
  memcpy(text, data, size);
  text[size] = 0;
  if (!ch_npy_parse_table(text, size, "input", 2, &array)) {
    for (int64_t i = 0; i < array.shape[0] * array.shape[1]; i++) sink += ((float *)array.data)[i] > 1;
    ch_npy_free(&array);
  }
  free(text);
}

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
  read_table(data, size);
  return 0;
}
