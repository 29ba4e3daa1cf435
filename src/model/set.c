/* Setting and reading fields by key, one or several at once. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/enter.h"
#include "base/error.h"
#include "base/format.h"
#include "model/config.h"

static int set_text(choir_config *config, const char *key, const char *value) {
  const ch_field *f;
  char want[400];
  int option = ch_plugin_option_find(config, key);
  if (option >= 0) return ch_plugin_option_set_text(config, option, value);
  CH_TRY(ch_field_find(key, &f));
  json_t *json = f->kind >= CH_FIELD_WORD ? json_string(value) : json_loads(value, JSON_DECODE_ANY, NULL);
  if (!json)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s is '%.40s': must be %s%s", f->path, value,
                    ch_field_wanted(f, want, sizeof want),
                    strpbrk(value, "0123456789") ? ", as JSON writes numbers: 0.05, 1e-3" : "");
  int code = ch_field_set(config, f, json);
  json_decref(json);
  return code;
}

/* "name" alone is ambiguous (model.name) and refused. */
static int names_router(const char *key) { return strchr(key, '.') && ch_path_ends("model.router.name", key); }

int choir_config_update(choir_config *config, const char *const *keys, const char *const *values, int count) {
  CH_ENTER(config, keys, values);
  choir_config made = *config;
  for (int i = 0; i < count; i++)
    if (!keys[i] || !values[i])
      return ch_error(CHOIR_ERROR_ARGUMENT, "choir_config_update: %s[%d] is NULL", keys[i] ? "values" : "keys", i);
  for (int names = 1; names >= 0; names--)
    for (int i = 0; i < count; i++)
      if (names_router(keys[i]) == names) CH_TRY(set_text(&made, keys[i], values[i]));
  if (config->model.router.kind != made.model.router.kind)
    ch_options_notice_reset(&config->model.router, &made.model.router, keys, count);
  *config = made;
  return CHOIR_OK;
}

int choir_config_set(choir_config *config, const char *key, const char *value) {
  CH_ENTER(config, key, value);
  return choir_config_update(config, &key, &value, 1);
}

int choir_config_get(const choir_config *config, const char *key, char *value, size_t size) {
  CH_ENTER(config, key, value);
  const ch_field *f;
  char text[CHOIR_VALUE_BYTES];
  int option = ch_plugin_option_find(config, key);
  if (option < 0) CH_TRY(ch_field_find(key, &f));
  if (option < 0)
    ch_field_text(config, f, text, sizeof text);
  else
    ch_format_exact(text, sizeof text, ch_plugin_option_value(config, option));
  if ((size_t)snprintf(value, size, "%s", text) < size) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "%s has %d bytes of text and an end: there is room for %zu", key,
                  (int)strlen(text), size);
}

static int read_number(const choir_config *config, const char *key, double *value) {
  CH_ENTER(config, key);
  const ch_field *f;
  int option = ch_plugin_option_find(config, key);
  if (option < 0) CH_TRY(ch_field_find(key, &f));
  *value = option < 0 ? ch_field_number(config, f) : ch_plugin_option_value(config, option);
  return isnan(*value) ? ch_error(CHOIR_ERROR_ARGUMENT, "%s is a text and no number", key) : CHOIR_OK;
}

double choir_config_number(const choir_config *config, const char *key) {
  double value;
  return read_number(config, key, &value) ? (double)NAN : value;
}
