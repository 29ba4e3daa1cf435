/* choir devices: the devices of this machine that can run a model. */
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

CLI_VERB(devices, "devices", "", 0, 0, "list the devices that can run a model",
         "Prints a line for each device of each backend, or what is missing to use the backend. Commands that compute, "
         "as 'train' and 'eval', accept the name at the start of a line: --backend cuda:0. A backend without a number "
         "means its first device; each further rank on a machine uses the next device.");
