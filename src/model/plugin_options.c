/* Options of a plug-in router: next to the built-in options in "router", and valid only for that router name. */
#include <stdio.h>
#include <string.h>

#include "model/config.h"
#include "moe/plugin.h"

static const ch_plugin *plugin_of(const choir_config *config) { return ch_plugin_of(config->model.router.kind); }

int ch_plugin_option_find(const choir_config *config, const char *key) {
  static const char *const before[] = {"", "router.", "model.router."};
  const ch_plugin *p = plugin_of(config);
  for (size_t i = 0; p && i < sizeof before / sizeof *before; i++)
    if (!strncmp(key, before[i], strlen(before[i])) && ch_plugin_option(&p->router, key + strlen(before[i])) >= 0)
      return ch_plugin_option(&p->router, key + strlen(before[i]));
  return -1;
}

static int refuse(const choir_plugin_option *option, const char *value) {
  char wanted[80];
  return ch_error(CHOIR_ERROR_ARGUMENT, "model.router.%s is %s: must be %s", option->name, value,
                  ch_plugin_wanted(option, wanted, sizeof wanted));
}

int ch_plugin_option_set(choir_config *config, int number, const json_t *value) {
  const ch_plugin *p = plugin_of(config);
  char text[80];
  ch_router_spec changed = config->model.router;
  if (!json_is_number(value)) return refuse(&p->given.options[number], ch_json_show(value, text, sizeof text));
  changed.plugin_options[number] = json_number_value(value);
  CH_TRY(ch_plugin_check_options(&p->router, &changed));
  config->model.router = changed;
  return CHOIR_OK;
}

int ch_plugin_option_set_text(choir_config *config, int number, const char *value) {
  char shown[64];
  json_t *json = json_loads(value, JSON_DECODE_ANY, NULL);
  snprintf(shown, sizeof shown, "'%.40s'", value);
  if (!json) return refuse(&plugin_of(config)->given.options[number], shown);
  int code = ch_plugin_option_set(config, number, json);
  json_decref(json);
  return code;
}

int ch_plugin_option_renew(choir_config *config) {
  ch_router_spec *is = &config->model.router;
  const ch_router_spec was = *is, brought = ch_router_default(was.kind);
  const ch_plugin *old = plugin_of(config), *now = old ? ch_plugin_of(ch_router_find(was.kind->name)) : NULL;
  if (!now || now == old) return CHOIR_OK;
  *is = ch_router_default(&now->router);
#define FIELD(kind, name, ...) \
  if (was.name != brought.name) is->name = was.name;
#include "config/router.def"
#undef FIELD
  for (int i = 0; i < old->options; i++) {
    const char *name = old->given.options[i].name;
    int number = ch_plugin_option(&now->router, name);
    if (was.plugin_options[i] == brought.plugin_options[i]) continue;
    if (number < 0)
      return ch_error(CHOIR_ERROR_ARGUMENT,
                      "model.router.%s is %g in a config of before router '%s' was defined anew, which has no such "
                      "option: set the router in the config again",
                      name, was.plugin_options[i], now->given.name);
    is->plugin_options[number] = was.plugin_options[i];
  }
  return CHOIR_OK;
}

double ch_plugin_option_value(const choir_config *config, int number) {
  return config->model.router.plugin_options[number];
}

int ch_plugin_option_json(const choir_config *config, json_t *router) {
  const ch_plugin *p = plugin_of(config);
  int failed = 0;
  for (int i = 0; p && i < p->options; i++)
    failed |= json_object_set_new(router, p->given.options[i].name, json_real(config->model.router.plugin_options[i]));
  return failed;
}
