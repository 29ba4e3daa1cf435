/* From a recipe and a scale to configs, budgets and the names of runs. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/suggest.h"
#include "file/json.h"
#include "model/config.h"
#include "study/study.h"

static const char *text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

/* One field to a JSON value. */
static int set_value(choir_config *config, const char *key, const json_t *value) {
  if (json_is_string(value)) return choir_config_set(config, key, json_string_value(value));
  char *text = ch_json_dump(value, JSON_ENCODE_ANY);
  if (!text) return ch_error(CHOIR_ERROR_MEMORY, "no memory for the value of '%s'", key);
  int code = choir_config_set(config, key, text);
  free(text);
  return code;
}

/* A field times a number; whole fields are rounded. */
static int multiply(choir_config *config, const char *key, double factor) {
  for (int i = 0; i < CH_FIELDS; i++) {
    if (strcmp(ch_fields[i].path, key)) continue;
    json_t *old = ch_field_json(config, &ch_fields[i]);
    double value = json_number_value(old) * factor;
    if (!strcmp(key, "model.d_expert") && !config->model.d_expert) value = config->model.d_hidden * factor;
    json_t *new = json_is_integer(old) ? json_integer(llround(value)) : json_real(value);
    int code = ch_field_set(config, &ch_fields[i], new);
    json_decref(old);
    json_decref(new);
    return code;
  }
  return ch_error(CHOIR_ERROR_FORMAT, "times: '%s' is no field of a config; write all of its path, as model.experts",
                  key);
}

int ch_study_change(choir_config *config, const json_t *from) {
  const char *key;
  json_t *value;
  json_object_foreach(json_object_get(from, "set"), key, value) CH_TRY(set_value(config, key, value));
  json_object_foreach(json_object_get(from, "times"), key, value)
      CH_TRY(multiply(config, key, json_number_value(value)));
  return CHOIR_OK;
}

/* The config that all arms begin with. */
static int base_config(const ch_study *s, choir_config *config) {
  const json_t *given = json_object_get(s->scale, "config");
  const char *name = json_string_value(given), *known = name ? ch_embedded_find(ch_configs, name) : NULL;
  if (known) {
    CH_TRY(ch_config_parse(known, strlen(known), name, config));
  } else if (name) {
    CH_TRY(choir_config_load(name, config));
  } else {
    char *text = given ? ch_json_dump(given, 0) : NULL;
    if (!text) return ch_error(CHOIR_ERROR_FORMAT, "scale '%s': \"config\" must be a name or an object", s->scale_name);
    int code = ch_config_parse(text, strlen(text), "config of the scale", config);
    free(text);
    CH_TRY(code);
  }
  config->model.vocab_size = s->vocab_size;
  CH_TRY(ch_study_change(config, s->scale));
  CH_TRY(ch_study_change(config, s->recipe));
  int64_t batch = json_integer_value(json_object_get(s->recipe, "batch_tokens"));
  if (batch) config->train.batch_sequences = (int)(batch / config->train.sequence_length);
  return CHOIR_OK;
}

/* What the arm itself and the value that is swept change. */
static int arm_config(const ch_study *s, const json_t *row, const json_t *value, ch_study_arm *arm) {
  const json_t *sweep = json_object_get(s->recipe, "sweep");
  choir_config *c = &arm->config;
  CH_TRY(base_config(s, c));
  CH_TRY(ch_study_change(c, row));
  if (value && *text_of(sweep, "set")) CH_TRY(set_value(c, text_of(sweep, "set"), value));
  if (value && *text_of(sweep, "times")) CH_TRY(multiply(c, text_of(sweep, "times"), json_number_value(value)));
  if (c->model.d_expert == c->model.d_hidden) c->model.d_expert = 0; /* the same model, the same run */
  CH_TRY(choir_config_check(c));
  return choir_config_cost(c, &arm->costs);
}

static int make_arm(ch_study *s, const json_t *row, const json_t *value, ch_study_arm *arm) {
  const json_t *sweep = json_object_get(s->recipe, "sweep");
  arm->swept = value ? json_number_value(value) : (double)NAN;
  if (value)
    snprintf(arm->name, sizeof arm->name, "%s, %g %s", text_of(row, "name"), arm->swept, text_of(sweep, "label"));
  else
    snprintf(arm->name, sizeof arm->name, "%s", text_of(row, "name"));
  int code =
      *text_of(row, "name") ? arm_config(s, row, value, arm) : ch_error(CHOIR_ERROR_FORMAT, "an arm has no \"name\"");
  return code ? ch_error_in(code, "recipe %s, arm '%s'", s->name, arm->name) : CHOIR_OK;
}

/* Which arm's rate is used: the one that the arm names, and in a sweep the one at the value that the sweep names. */
static int find_rate_owner(const ch_study *s, const json_t *arms, int columns, int number) {
  const ch_study_arm *arm = &s->arm[number];
  const json_t *values = json_object_get(json_object_get(s->recipe, "sweep"), "values");
  const char *other = text_of(json_array_get(arms, (size_t)arm->row), "rate_of");
  double at = json_number_value(json_object_get(json_object_get(s->recipe, "sweep"), "rate_of"));
  int row = arm->row, column = arm->column;
  for (int i = 0; *other && i < (int)json_array_size(arms); i++)
    if (!strcmp(text_of(json_array_get(arms, (size_t)i), "name"), other)) row = i;
  for (int i = 0; at > 0 && i < columns; i++)
    if (json_number_value(json_array_get(values, (size_t)i)) == at) column = i;
  return row * columns + column;
}

static int make_arms(ch_study *s) {
  const json_t *arms = json_object_get(s->recipe, "arms"),
               *values = json_object_get(json_object_get(s->recipe, "sweep"), "values");
  int columns = values ? (int)json_array_size(values) : 1;
  s->arms = (int)json_array_size(arms) * columns;
  s->arm = calloc((size_t)s->arms + 1, sizeof *s->arm);
  if (!s->arm) return ch_error(CHOIR_ERROR_MEMORY, "no memory for %d arms", s->arms);
  if (!s->arms) return ch_error(CHOIR_ERROR_FORMAT, "recipe %s: has no arm", s->name);
  for (int i = 0; i < s->arms; i++) {
    s->arm[i].row = i / columns, s->arm[i].column = i % columns;
    CH_TRY(make_arm(s, json_array_get(arms, (size_t)(i / columns)),
                    values ? json_array_get(values, (size_t)(i % columns)) : NULL, &s->arm[i]));
    for (int j = 0; j < i; j++)
      if (!strcmp(s->arm[i].name, s->arm[j].name))
        return ch_error(CHOIR_ERROR_FORMAT, "recipe %s: two arms are called '%s'", s->name, s->arm[i].name);
  }
  for (int i = 0; i < s->arms; i++) s->arm[i].rate_of = find_rate_owner(s, arms, columns, i);
  return CHOIR_OK;
}

static int64_t tokens_of_step(const choir_config *c) {
  return (int64_t)c->train.batch_sequences * c->train.sequence_length * c->train.accumulate;
}

/* Whole intervals between evaluations, at least one. */
static int64_t whole(const ch_study *s, double tokens) {
  int64_t intervals = (int64_t)(tokens / (double)(s->step_tokens * s->eval_every));
  return (intervals > 0 ? intervals : 1) * s->eval_every;
}

static int read_rates(ch_study *s) {
  const json_t *rates = json_object_get(s->scale, "rates");
  s->rates = (int)json_array_size(rates);
  if (s->rates < 1 || s->rates > CH_STUDY_RATES)
    return ch_error(CHOIR_ERROR_FORMAT, "scale '%s': \"rates\" must be a list of 1 to %d numbers", s->scale_name,
                    CH_STUDY_RATES);
  for (int i = 0; i < s->rates; i++) s->rate[i] = json_number_value(json_array_get(rates, (size_t)i));
  return CHOIR_OK;
}

/* Claims speak of arms that there are, and of what can be computed. */
static int check_claims(const ch_study *s) {
  static const char *const kinds[] = {"loss",      "steps",       "seconds",    "share",    "gap",
                                      "step_time", "device_time", "gap_growth", "accuracy", NULL};
  static const char *const keys[] = {"arm", "rival", "than_arm", "than_rival", NULL};
  const json_t *claim;
  size_t i;
  json_array_foreach(json_object_get(s->recipe, "claims"), i, claim) {
    const char *kind = text_of(claim, "kind");
    int known = 0;
    for (int k = 0; kinds[k]; k++) known |= !strcmp(kinds[k], kind);
    if (!known) {
      char list[160];
      return ch_error(CHOIR_ERROR_FORMAT, "recipe %s, claims[%zu]: kind '%s': one of %s", s->name, i, kind,
                      ch_word_list(list, sizeof list, kinds));
    }
    if (!strcmp(kind, "accuracy") && !json_object_get(s->recipe, "tune"))
      return ch_error(CHOIR_ERROR_FORMAT, "recipe %s, claims[%zu]: accuracy: the recipe has no \"tune\"", s->name, i);
    for (int k = 0; keys[k]; k++) {
      const json_t *name = json_object_get(claim, keys[k]);
      char text[80];
      if ((name || !k) && ch_study_arm_find(s, json_string_value(name)) < 0)
        return ch_error(CHOIR_ERROR_FORMAT, "recipe %s, claims[%zu]: %s %s: no such arm", s->name, i, keys[k],
                        name ? ch_json_show(name, text, sizeof text) : "is missing");
    }
  }
  return CHOIR_OK;
}

int ch_study_plan(ch_study *s, int64_t tokens) {
  double rate_tokens, eval_tokens, budget;
  CH_TRY(make_arms(s));
  CH_TRY(check_claims(s));
  CH_TRY(ch_json_get_number(s->scale, s->scale_name, "tokens", 1, 1e15, &budget));
  CH_TRY(ch_json_get_number(s->scale, s->scale_name, "rate_tokens", 1, 1e15, &rate_tokens));
  CH_TRY(ch_json_get_number(s->scale, s->scale_name, "eval_tokens", 1, 1e15, &eval_tokens));
  CH_TRY(read_rates(s));
  s->step_tokens = tokens_of_step(&s->arm[0].config);
  for (int i = 1; i < s->arms; i++)
    if (tokens_of_step(&s->arm[i].config) != s->step_tokens ||
        s->arm[i].config.train.sequence_length != s->arm[0].config.train.sequence_length)
      return ch_error(CHOIR_ERROR_FORMAT,
                      "recipe %s: '%s' and '%s' take other tokens a step; all arms must see the same windows", s->name,
                      s->arm[0].name, s->arm[i].name);
  s->eval_every = (int64_t)(eval_tokens / (double)s->step_tokens);
  if (s->eval_every < 1) s->eval_every = 1;
  s->steps = whole(s, tokens > 0 ? (double)tokens : budget);
  s->rate_steps = whole(s, rate_tokens);
  if (s->rate_steps > s->steps) s->rate_steps = s->steps;
  return ch_study_tune_plan(s);
}

void ch_study_free(ch_study *s) {
  json_decref(s->recipe);
  json_decref(s->scale);
  free(s->arm);
  ch_study_tune_free(&s->tune);
  *s = (ch_study){0};
}

int ch_study_arm_find(const ch_study *s, const char *name) {
  for (int i = 0; name && i < s->arms; i++)
    if (!strcmp(s->arm[i].name, name)) return i;
  return -1;
}

void ch_study_config(const ch_study *s, int arm, double rate, int seed, int64_t steps, choir_config *config) {
  *config = s->arm[arm].config;
  config->train.rate = rate;
  config->train.seed = (uint64_t)seed;
  config->train.steps = steps;
  config->train.eval_every = s->eval_every;
  config->train.checkpoint_every = 4 * s->eval_every;
  config->train.keep_checkpoints = 1;
}

int ch_study_run_name(const ch_study *s, const choir_config *config, char *name) {
  json_t *json = ch_config_json(config), *train = json_object_get(json, "train");
  if (json) {
    json_object_del(train, "steps");
    json_object_del(train, "checkpoint_every");
    json_object_del(train, "keep_checkpoints");
    json_object_del(train, "file_bytes");
    json_object_del(json_object_get(json, "model"), "name");
  }
  char *text = json ? ch_json_dump(json, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
  json_decref(json);
  if (!text) return ch_error(CHOIR_ERROR_MEMORY, "no memory for a config");
  uint64_t sum = XXH64(text, strlen(text), s->data_hash);
  free(text);
  snprintf(name, CH_RUN_NAME, "%s-e%d-r%g-s%" PRIu64 "-%016" PRIx64, config->model.router.name, config->model.experts,
           config->train.rate, config->train.seed, sum);
  return CHOIR_OK;
}

void ch_study_run_path(const ch_study *s, const char *name, char *path) {
  snprintf(path, PATH_MAX, "%.3000s/runs/%s", s->directory, name);
}
