/* A GGUF file: any bytes are read, with every tensor inside them and keys that are a config, or refused. */
#include <stdlib.h>
#include <string.h>

#include "export/gguf_read.h"
#include "export/import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  ch_gguf_in in;
  choir_config config;
  ch_buffer model = {0};
  json_t *root;
  double gate_scale;
  ch_kind kind;
  char *aligned = aligned_alloc(64, (size + 64) / 64 * 64); /* as a mapped file is */
  if (!aligned) return 0;
  memcpy(aligned, data, size);
  if (ch_gguf_parse(aligned, size, "x.gguf", &in)) {
    if (!*choir_error_message()) abort();
    free(aligned);
    return 0;
  }
  for (int i = 0; i < choir_tensors_count(in.tensors); i++) {
    const choir_tensor *t = choir_tensors_at(in.tensors, i);
    if ((const char *)t->data < aligned || (const char *)t->data + t->bytes > aligned + size) abort();
  }
  if (!ch_gguf_config(&in, "x.gguf", &root)) {
    if (!ch_import_config(root, "x.gguf", &config, &gate_scale, &kind) && choir_config_check(&config)) abort();
    json_decref(root);
  }
  ch_gguf_tokenizer(&in, "x.gguf", &model);
  free(model.data);
  ch_gguf_close_in(&in);
  free(aligned);
  return 0;
}
