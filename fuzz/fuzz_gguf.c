/* A GGUF file: any bytes are read, with every tensor inside them and keys that are a config, or refused. The values of
 * a Q8_0 block become a block of the same values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "export/gguf_read.h"
#include "export/import.h"
#include "export/plan.h"

static void check_blocks(const choir_tensor *t) {
  int64_t blocks = (int64_t)t->bytes / CH_Q8_BYTES;
  for (int64_t b = 0; b < blocks && b < 256; b++) {
    float x[CH_Q8_VALUES];
    int8_t q[CH_Q8_VALUES];
    int positive = ((const char *)t->data)[b * CH_Q8_BYTES + 1] >= 0, fits = 1;
    for (int i = 0; i < CH_Q8_VALUES; i++) {
      x[i] = ch_export_value(CHOIR_U8, t->data, b * CH_Q8_VALUES + i);
      fits &= fabsf(x[i]) <= CH_Q8_MAX;
    }
    if (!fits || !positive) continue;
    float scale = ch_half_value(ch_q8_round(x, q));
    for (int i = 0; i < CH_Q8_VALUES; i++)
      if (scale * (float)q[i] != x[i]) abort();
  }
}

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
    if (t->dtype == CHOIR_U8) check_blocks(t);
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
