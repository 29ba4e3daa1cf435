/* Recipes and scales as JSON: found, read, checked. */
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/suggest.h"
#include "file/json.h"
#include "study/study.h"

enum { KNOWN_MOST = 32 };

const char *ch_embedded_find(const ch_embedded *table, const char *name) {
  for (; table->name; table++)
    if (!strcmp(table->name, name)) return table->text;
  return NULL;
}

static int check_list(const char *file, const json_t *recipe, const char *list, const char *const *known) {
  json_t *array, *item;
  size_t i;
  CH_TRY(ch_json_get_array(recipe, file, list, &array));
  json_array_foreach(array, i, item) {
    char where[PATH_MAX];
    snprintf(where, sizeof where, "%s: %s[%zu]", file, list, i);
    if (!json_is_object(item)) return ch_error(CHOIR_ERROR_FORMAT, "%s: must be an object {...}", where);
    CH_TRY(ch_json_check_keys(item, where, known));
  }
  return CHOIR_OK;
}

int ch_recipe_check(const char *file, const json_t *recipe) {
  static const char *const keys[] = {"name",    "title",  "figure", "question",     "set",  "times", "arms",
                                     "measure", "claims", "sweep",  "batch_tokens", "tune", NULL};
  static const char *const arm_keys[] = {"name", "set", "times", "rate_of", NULL};
  static const char *const claim_keys[] = {"text", "paper", "kind", "arm",   "rival",    "figure",     "margin",
                                           "from", "to",    "null", "about", "than_arm", "than_rival", NULL};
  static const char *const sweep_keys[] = {"label", "set", "times", "values", "rate_of", NULL};
  const char *text;
  CH_TRY(ch_json_check_keys(recipe, file, keys));
  CH_TRY(ch_json_get_string(recipe, file, "name", &text));
  if (!*text || strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != strlen(text) ||
      strlen(text) >= CH_STUDY_NAME / 2)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: name '%.80s': letters, digits, - and _ only, %d at most", file, text,
                    CH_STUDY_NAME / 2 - 1);
  CH_TRY(ch_json_get_string(recipe, file, "title", &text));
  CH_TRY(ch_json_get_string(recipe, file, "question", &text));
  CH_TRY(check_list(file, recipe, "arms", arm_keys));
  CH_TRY(check_list(file, recipe, "claims", claim_keys));
  json_t *sweep = json_object_get(recipe, "sweep"), *tune = json_object_get(recipe, "tune");
  if (tune) CH_TRY(ch_study_tune_check(file, tune));
  char where[PATH_MAX];
  snprintf(where, sizeof where, "%s: sweep", file);
  return sweep ? ch_json_check_keys(sweep, where, sweep_keys) : CHOIR_OK;
}

int ch_recipe_load(const char *name, json_t **recipe) {
  const char *known[KNOWN_MOST + 1] = {0};
  char suggestion[100];
  const char *text = strcmp(name, "scales") ? ch_embedded_find(ch_studies, name) : NULL;
  int code;
  if (text) {
    code = ch_json_parse(text, strlen(text), name, recipe);
  } else if (access(name, R_OK) == 0) {
    code = ch_json_load(name, recipe);
  } else {
    for (int i = 0; i < KNOWN_MOST && ch_studies[i].name; i++) known[i] = ch_studies[i].name;
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s: neither a recipe nor a file%s; `choir study list` shows the recipes",
                    name, ch_did_you_mean(suggestion, sizeof suggestion, name, known));
  }
  if (!code) code = ch_recipe_check(name, *recipe);
  if (!code) return CHOIR_OK;
  json_decref(*recipe);
  *recipe = NULL;
  return code;
}

static int scale_named(const char *name, json_t **scale) {
  json_t *all;
  const char *text = ch_embedded_find(ch_studies, "scales");
  CH_TRY(ch_json_parse(text, strlen(text), "scales", &all));
  *scale = json_incref(json_object_get(all, name));
  json_decref(all);
  return *scale ? CHOIR_OK
                : ch_error(CHOIR_ERROR_ARGUMENT, "scale '%s': neither pico, nano, small, 0.1b nor a file", name);
}

int ch_scale_load(const char *name, json_t **scale) {
  static const char *const keys[] = {"config",      "set",         "tokens", "seeds", "rates",
                                     "rate_tokens", "eval_tokens", "tune",   NULL};
  CH_TRY(access(name, R_OK) == 0 && strchr(name, '.') && strcmp(name, "0.1b") ? ch_json_load(name, scale)
                                                                              : scale_named(name, scale));
  int code = ch_json_check_keys(*scale, name, keys);
  if (!code) return CHOIR_OK;
  json_decref(*scale);
  *scale = NULL;
  return code;
}

int choir_study_recipe(int index, choir_study_recipe_info *info) {
  *info = (choir_study_recipe_info){0};
  for (int i = 0; ch_studies[i].name; i++) {
    json_t *recipe;
    if (!strcmp(ch_studies[i].name, "scales") || index-- > 0) continue;
    if (ch_recipe_load(ch_studies[i].name, &recipe)) return 0;
    snprintf(info->name, sizeof info->name, "%s", json_string_value(json_object_get(recipe, "name")));
    snprintf(info->title, sizeof info->title, "%s", json_string_value(json_object_get(recipe, "title")));
    snprintf(info->question, sizeof info->question, "%s", json_string_value(json_object_get(recipe, "question")));
    const char *figure = json_string_value(json_object_get(recipe, "figure"));
    snprintf(info->figure, sizeof info->figure, "%s", figure ? figure : "");
    size_t values = json_array_size(json_object_get(json_object_get(recipe, "sweep"), "values"));
    info->arms = (int)(json_array_size(json_object_get(recipe, "arms")) * (values ? values : 1));
    info->claims = (int)json_array_size(json_object_get(recipe, "claims"));
    json_decref(recipe);
    return 1;
  }
  return 0;
}
