/* --set: lines KEY=VALUE, one after the other, on a config of the defaults. choir takes or refuses each line, and a
 * config with all lines taken reads back from its file unchanged. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  choir_config config, again;
  char *text = strndup((const char *)data, size), *rest = NULL;
  if (!text) abort();
  ch_config_default(&config);
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    char *value = strchr(line, '=');
    if (!value) continue;
    *value = 0;
    choir_config_set(&config, line, value + 1);
  }
  free(text);
  if (choir_config_check(&config)) return 0;
  json_t *json = ch_config_json(&config);
  char *saved = json ? json_dumps(json, JSON_REAL_PRECISION(17)) : NULL;
  if (!saved || ch_config_parse(saved, strlen(saved), "saved", &again)) abort();
  json_t *json2 = ch_config_json(&again);
  if (!json_equal(json, json2)) abort();
  json_decref(json), json_decref(json2);
  free(saved);
  return 0;
}
