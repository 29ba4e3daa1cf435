/* choir devices: what could run a model here. */
#include "cli.h"

static int run_devices(int count, const char *const *operands) {
  cli_table table;
  cli_table_begin(&table, 0, "|");
  for (const char *const *name = choir_backend_names(); *name; name++) {
    char text[256];
    int number = 0;
    for (; !choir_backend_get_device(*name, number, text, sizeof text); number++) {
      cli_cell(&table, "%s:%d", *name, number);
      cli_cell(&table, "%s", cli_shown(text));
    }
    if (number) continue;
    cli_cell(&table, "%s", *name);
    if (choir_backend_check(*name))
      cli_cell(&table, "not available: %s", cli_shown(choir_error_message()));
    else
      cli_cell(&table, "this CPU");
  }
  return cli_table_end(&table);
}

static const cli_option options[] = {{0}};

CLI_VERB(devices, "devices", "", 0, 0, "list what could run a model here",
         "A line for every backend: its devices, or what is missing. 'train', 'eval' and all others that compute take "
         "what stands first in a line: --backend cuda:0. Without a number a backend takes its first device; ranks of "
         "a machine take one after the other.");
