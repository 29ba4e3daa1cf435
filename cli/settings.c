/* --set KEY=VALUE on a config. */
#include <string.h>

#include "cli.h"

int cli_apply_settings(choir_config *config, const cli_list *settings) {
  for (int i = 0; i < settings->count; i++) {
    const char *equals = strchr(settings->values[i], '=');
    char key[128];
    if (!equals || equals == settings->values[i] || (size_t)(equals - settings->values[i]) >= sizeof key)
      return cli_usage("--set %s: must be KEY=VALUE", settings->values[i]);
    snprintf(key, sizeof key, "%.*s", (int)(equals - settings->values[i]), settings->values[i]);
    if (choir_config_set(config, key, equals + 1)) return cli_fail();
  }
  return 0;
}
