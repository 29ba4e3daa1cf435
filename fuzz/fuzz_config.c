/* Configs: any text is read or refused; what is accepted is a config whose parameters can be counted. The first line,
 * where it has the form key=value, goes through --set. */
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "model/param.h"

/* The config of a text, with one more setting. */
static void set(const uint8_t *data, size_t size, choir_config *config) {
  const uint8_t *line = size ? memchr(data, '\n', size) : NULL,
                *equals = line ? memchr(data, '=', (size_t)(line - data)) : NULL;
  if (!equals) return;
  char *text = strndup((const char *)data, (size_t)(line - data));
  char *value = text ? strchr(text, '=') : NULL;
  if (value) {
    *value = 0;
    choir_config_set(config, text, value + 1);
  }
  free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  choir_config config;
  ch_params params;
  if (ch_config_parse((const char *)data, size, "input", &config)) ch_config_default(&config);
  set(data, size, &config);
  if (choir_config_check(&config)) return 0;
  if (ch_params_build(&config.model, &params)) abort(); /* check says that it can be built */
  if (ch_params_total(&params) < 0) abort();
  ch_params_free(&params);
  return 0;
}
