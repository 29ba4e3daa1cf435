/* A study from the options of `choir study run`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/reader.h"
#include "file/dir.h"
#include "file/json.h"
#include "study/study.h"

static int open_data(ch_study *s, const char *directory) {
  choir_data *data;
  choir_data_info info;
  if (!realpath(directory, s->data)) return ch_error_errno("%s: cannot open data", directory);
  CH_TRY(ch_json_check_name(s->data));
  CH_TRY(choir_data_open(s->data, &data));
  choir_data_get_info(data, &info);
  s->data_hash = ch_data_hash(data);
  s->data_tokens = (int64_t)info.train_tokens;
  s->vocab_size = info.vocab_size;
  choir_data_close(data);
  return info.heldout_tokens
             ? CHOIR_OK
             : ch_error(CHOIR_ERROR_ARGUMENT, "%s: has no held-out share; a study measures nothing else", directory);
}

static int name_study(ch_study *s, const choir_study_options *o) {
  const char *scale = o->scale ? o->scale : "pico", *slash = strrchr(scale, '/');
  CH_TRY(ch_recipe_load(o->recipe, &s->recipe));
  CH_TRY(ch_scale_load(scale, &s->scale));
  snprintf(s->name, sizeof s->name, "%s", json_string_value(json_object_get(s->recipe, "name")));
  snprintf(s->scale_name, sizeof s->scale_name, "%s", slash ? slash + 1 : scale);
  char *ending = strstr(s->scale_name, ".json");
  if (ending) *ending = 0;
  snprintf(s->own, sizeof s->own, "%.3000s/%s-%s", s->directory, s->name, s->scale_name);
  s->seeds = o->seeds ? o->seeds : (int)json_integer_value(json_object_get(s->scale, "seeds"));
  if (s->seeds < 1 || s->seeds > CH_STUDY_SEEDS)
    return ch_error(CHOIR_ERROR_ARGUMENT, "seeds: %d: must be 1 to %d", s->seeds, CH_STUDY_SEEDS);
  return CHOIR_OK;
}

static int make_directories(const ch_study *s) {
  static const char *const names[] = {"runs", "configs", "logs", "tuned", NULL};
  char path[PATH_MAX];
  for (int i = 0; names[i]; i++) {
    snprintf(path, sizeof path, "%.3000s/%s", s->directory, names[i]);
    CH_TRY(ch_dir_make(path));
  }
  return ch_dir_make(s->own);
}

int ch_study_set_up(const choir_study_options *o, ch_study *s) {
  CH_TRY(name_study(s, o));
  CH_TRY(open_data(s, o->data));
  s->tune.steps = o->tune_steps;
  s->tune.rows = o->tune_rows;
  CH_TRY(ch_study_plan(s, o->tokens));
  CH_TRY(ch_study_tune_set_up(s, o));
  CH_TRY(make_directories(s));
  return ch_study_save(s);
}

int ch_study_measures(const ch_study *s, const char *what) {
  const json_t *item;
  size_t i;
  json_array_foreach(json_object_get(s->recipe, "measure"), i,
                     item) if (!strcmp(json_string_value(item), what)) return 1;
  return 0;
}
