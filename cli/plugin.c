/* --plugin FILE, handled before any verb reads a config: third-party routers. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

static cli_list files;
const cli_option cli_plugin_option = {
    "plugin", "FILE", CLI_LIST,
    &files,   NULL,   "a router of your own, in Python or C (docs/adding-a-router.md); may be repeated",
    0};

/* Loads a plug-in. Pipes are refused, because opening one blocks; and folders, because Python runs one that has a
 * __main__.py. */
static int load(const char *file) {
  struct stat found;
  const char *dot = strrchr(file, '.');
  if (!stat(file, &found) && !S_ISREG(found.st_mode)) return cli_fail_with("plug-in %s: is not a file", file);
  if (dot && !strcmp(dot, ".py")) return cli_load_python(file);
  return choir_plugin_load(file) ? cli_fail() : 0;
}

int cli_add_plugin(const char *file) {
  if (!file || !*file) return cli_usage("--plugin needs a file: a router of your own (docs/adding-a-router.md)");
  if (files.count == CLI_LIST_MAX) return cli_usage("--plugin: given more than %d times", CLI_LIST_MAX);
  files.values[files.count++] = file;
  return 0;
}

int cli_plugin_count(void) { return files.count; }

int cli_load_plugins(void) {
  int status = 0;
  for (int i = 0; i < files.count && !status; i++) status = load(files.values[i]);
  return status;
}

const char *cli_plugins_shown(void) {
  static char shown[1024];
  *shown = 0;
  for (int i = 0; i < files.count; i++)
    snprintf(shown + strlen(shown), sizeof shown - strlen(shown), " --plugin %s", cli_shown(files.values[i]));
  return shown;
}
