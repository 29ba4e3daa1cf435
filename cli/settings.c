/* Reads configs for verbs: from a file or a directory, with --set KEY=VALUE. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

enum { KEY_BYTES = 128 };

/* The key of "KEY=VALUE"; returns the value, or NULL. */
static const char *split_setting(const char *setting, char *key, size_t size) {
  const char *equals = strchr(setting, '=');
  if (!equals || equals == setting || (size_t)(equals - setting) >= size) return NULL;
  snprintf(key, size, "%.*s", (int)(equals - setting), setting);
  return equals + 1;
}

static int names_router(const char *key) { return !strcmp(key, "router.name") || !strcmp(key, "model.router.name"); }

int cli_apply_settings(choir_config *config, const cli_list *settings) {
  static char names[CLI_LIST_MAX][KEY_BYTES];
  const char *keys[CLI_LIST_MAX], *values[CLI_LIST_MAX];
  for (int i = 0; i < settings->count; i++) {
    keys[i] = names[i];
    values[i] = split_setting(settings->values[i], names[i], KEY_BYTES);
    if (!values[i]) return cli_usage("--set %s: must be KEY=VALUE", settings->values[i]);
  }
  return choir_config_update(config, keys, values, settings->count) ? cli_fail() : 0;
}

/* Whether it is an option of a layer in training; routing alone does not use it. */
static int is_of_layers(const char *option) {
  static const char *const names[] = {"aux_loss_weight", "consistency_weight", "decay", "jitter", "threshold_after"};
  int found = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) found |= !strcmp(option, names[i]);
  return found;
}

int cli_apply_router_settings(choir_config *config, const cli_list *settings) {
  for (int i = 0; i < settings->count; i++) {
    char name[128], key[160];
    const char *value = split_setting(settings->values[i], name, sizeof name);
    if (!value) return cli_usage("--set %s: must be KEY=VALUE", settings->values[i]);
    if (names_router(name)) return cli_usage("--set %s: select the router with --router", settings->values[i]);
    const char *dot = strrchr(name, '.');
    if (dot && strncmp(name, "router.", 7) && strncmp(name, "model.router.", 13))
      return cli_usage("--set %s: only options of the router, router.NAME, have an effect here", settings->values[i]);
    if (is_of_layers(dot ? dot + 1 : name))
      return cli_usage("--set %s: has an effect in training only", settings->values[i]);
    snprintf(key, sizeof key, "router.%s", dot ? dot + 1 : name);
    if (choir_config_set(config, key, value)) return cli_fail();
  }
  return 0;
}

int cli_load_config(const char *path, const cli_list *settings, choir_config **config) {
  char file[4096];
  struct stat status;
  if (!stat(path, &status) && S_ISDIR(status.st_mode)) {
    snprintf(file, sizeof file, "%s/data.json", path);
    if (!access(file, F_OK))
      return cli_fail_with("%s: is token data, not a config; try: choir data info %s", path, path);
    snprintf(file, sizeof file, "%s/config.json", path);
    path = file;
  }
  if (choir_config_load(path, config)) return cli_fail();
  return cli_apply_settings(*config, settings);
}

const char *cli_field(const choir_config *config, const char *key) {
  enum { VALUES = 16 }; /* more than one call of printf uses */
  static char values[VALUES][CHOIR_VALUE_BYTES];
  static int next;
  char *value = values[next++ % VALUES];
  return choir_config_get(config, key, value, sizeof values[0]) ? "" : value;
}

int cli_count_of(const choir_config *config, const char *key) { return (int)choir_config_number(config, key); }

int cli_predicts_masked(const choir_model *model) { return choir_config_mask_token(choir_model_config(model)) >= 0; }

/* Sets the vocabulary size; any number has the right form, and the library checks the range. */
static void set_vocabulary(choir_config *config, int size) {
  char text[16];
  snprintf(text, sizeof text, "%d", size);
  choir_config_set(config, "model.vocab_size", text);
}

int cli_vocabulary(choir_config *config, int given) {
  if (given) set_vocabulary(config, given);
  if (cli_count_of(config, "model.vocab_size")) return 0;
  set_vocabulary(config, 32000);
  return 1;
}
