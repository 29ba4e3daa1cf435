/* choir devices: what could run a model here. */
#include "cli.h"

static int run_devices(int count, const char *const *operands) {
  for (const char *const *name = choir_backend_names(); *name; name++) {
    char text[256];
    int number = 0;
    for (; !choir_backend_get_device(*name, number, text, sizeof text); number++)
      printf("%s:%d  %s\n", *name, number, cli_shown(text));
    if (number) continue;
    if (choir_backend_check(*name))
      printf("%s    not here: %s\n", *name, cli_shown(choir_error_message()));
    else
      printf("%s    this CPU\n", *name);
  }
  return 0;
}

static const cli_option options[] = {{0}};

CLI_VERB(devices, "devices", "", 0, 0, "list what could run a model here",
         "A line for every backend: its devices, or what is missing. 'train', 'eval' and all others that compute take "
         "what stands first in a line: --backend cuda:0. Without a number a backend takes its first device; ranks of "
         "a machine take one after the other.");
