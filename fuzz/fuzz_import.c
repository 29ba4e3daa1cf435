/* config.json of a foreign model: whatever it says, it becomes a config that passes, all of whose parameters have a
 * name there, or is refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "export/import.h"
#include "model/param.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  choir_config config;
  ch_params params;
  json_t *root;
  double gate_scale;
  ch_kind kind = CH_KINDS;
  if (ch_json_parse((const char *)data, size, "config.json", &root)) return 0;
  int code = ch_import_config(root, "config.json", &config, &gate_scale, &kind);
  json_decref(root);
  if (code) {
    if (!*choir_error_message()) abort();
    return 0;
  }
  if (choir_config_check(&config) || kind >= CH_KINDS || !isfinite(gate_scale)) abort();
  if (config.model.layers > 64 || ch_params_build(&config.model, &params)) return 0;
  for (int i = 0; i < params.count + params.buffers; i++) {
    const ch_export_row *row = ch_export_find(params.p[i].name);
    char name[128] = "";
    if (row) ch_export_name(kind, CH_EXPORT_HF, row, params.p[i].layer, 0, name);
    if (!*name) abort();
  }
  ch_params_free(&params);
  return 0;
}
