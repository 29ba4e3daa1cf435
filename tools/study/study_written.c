/* What a study measured and wrote down, read back: refused by file and place where it is not as it was written. */
#include <float.h>
#include <stdio.h>

#include "base/error.h"
#include "file/json.h"
#include "study/study.h"

/* A number, or null for what there was no number of. */
static int check_number(const json_t *object, const char *where, const char *key, double low, double high) {
  double ignored;
  return json_is_null(json_object_get(object, key)) ? CHOIR_OK
                                                    : ch_json_get_number(object, where, key, low, high, &ignored);
}

/* ---- time.json ---- */

/* Rounds of one figure: as many as of the first one. */
static int check_rounds(const json_t *arm, const char *where, const char *key, size_t *rounds) {
  json_t *array, *value;
  size_t i;
  CH_TRY(ch_json_get_array(arm, where, key, &array));
  if (*rounds == SIZE_MAX) *rounds = json_array_size(array);
  if (json_array_size(array) != *rounds || *rounds > CH_STUDY_ROUNDS)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"%s\" has %zu rounds: must have as many as \"step\", %d at most", where,
                    key, json_array_size(array), CH_STUDY_ROUNDS);
  json_array_foreach(array, i, value) {
    char text[80];
    if (!(json_number_value(value) >= 0 && json_number_value(value) <= DBL_MAX) || !json_is_number(value))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: %s[%zu] is %s: must be a number, and not negative", where, key, i,
                      ch_json_show(value, text, sizeof text));
  }
  return CHOIR_OK;
}

int ch_study_check_time(const char *path, const json_t *time) {
  static const char *const keys[] = {"step", "expert", "load", "demand", NULL};
  int64_t ignored;
  json_t *arms, *arm;
  const char *name;
  CH_TRY(ch_json_get_integer(time, path, "threads", 1, INT32_MAX, &ignored));
  CH_TRY(ch_json_get_integer(time, path, "rounds", 1, CH_STUDY_ROUNDS, &ignored));
  CH_TRY(ch_json_get_object(time, path, "arms", &arms));
  json_object_foreach(arms, name, arm) {
    char where[PATH_MAX];
    size_t rounds = SIZE_MAX;
    snprintf(where, sizeof where, "%.3000s: arm '%.80s'", path, name);
    for (int k = 0; keys[k]; k++) CH_TRY(check_rounds(arm, where, keys[k], &rounds));
  }
  return CHOIR_OK;
}

/* ---- measures.json ---- */

static int check_pool(const char *path, size_t number, const json_t *row) {
  char where[PATH_MAX];
  const char *routing;
  int64_t pool;
  snprintf(where, sizeof where, "%.3000s: pools[%zu]", path, number);
  CH_TRY(ch_json_get_string(row, where, "routing", &routing));
  CH_TRY(ch_json_get_integer(row, where, "pool", 1, INT64_MAX, &pool));
  if (!json_is_boolean(json_object_get(row, "scattered")))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: \"scattered\" must be true or false", where);
  CH_TRY(check_number(row, where, "loss", -DBL_MAX, DBL_MAX));
  return check_number(row, where, "causal", -DBL_MAX, DBL_MAX);
}

int ch_study_check_measures(const char *path, const json_t *measures) {
  json_t *pools, *row, *own, *counted;
  int64_t step;
  size_t i;
  CH_TRY(ch_json_get_integer(measures, path, "step", 1, INT64_MAX, &step));
  CH_TRY(ch_json_get_array(measures, path, "pools", &pools));
  json_array_foreach(pools, i, row) CH_TRY(check_pool(path, i, row));
  CH_TRY(ch_json_get_object(measures, path, "own", &own));
  return ch_json_get_object(own, path, "counted", &counted);
}

/* ---- result.json of fine-tuning ---- */

static int check_measure(const char *path, const char *name, const json_t *measure) {
  char where[PATH_MAX];
  int64_t labelled;
  snprintf(where, sizeof where, "%.3000s: %s", path, name);
  CH_TRY(ch_json_get_integer(measure, where, "labelled", 0, INT64_MAX, &labelled));
  return check_number(measure, where, "accuracy", 0, 1);
}

int ch_study_check_result(const char *path, const json_t *result) {
  json_t *measure;
  int64_t step;
  CH_TRY(ch_json_get_integer(result, path, "step", 0, INT64_MAX, &step));
  CH_TRY(check_number(result, path, "majority", 0, 1));
  CH_TRY(ch_json_get_object(result, path, "own", &measure));
  CH_TRY(check_measure(path, "own", measure));
  if (!json_object_get(result, "batch")) return CHOIR_OK;
  CH_TRY(ch_json_get_object(result, path, "batch", &measure));
  return check_measure(path, "batch", measure);
}
