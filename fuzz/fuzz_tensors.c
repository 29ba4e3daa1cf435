/* safetensors: any bytes are read or refused; what is read can be looked at to its last byte. */
#include <stdlib.h>
#include <string.h>

#include "file/tensors.h"

static volatile unsigned sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  choir_tensors *tensors;
  void *copy = malloc(size + 1); /* aligned as a mapping is */
  if (!copy) return 0;
  memcpy(copy, data, size);
  if (!ch_tensors_parse(copy, size, "input", 1, &tensors)) {
    for (int i = 0; i < choir_tensors_count(tensors); i++) {
      const choir_tensor *t = choir_tensors_at(tensors, i);
      if (choir_tensors_find(tensors, t->name) != t) abort();
      for (size_t k = 0; k < t->bytes; k++) sink += ((const uint8_t *)t->data)[k];
    }
    choir_tensors_metadata(tensors, "format");
    choir_tensors_free(tensors);
  }
  free(copy);
  return 0;
}
