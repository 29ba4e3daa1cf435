/* How far the studies of a directory are. */
#include <stdlib.h>

#include "base/error.h"
#include "file/json.h"
#include "study/study.h"
#include "study/study_jobs.h"

static json_t *runs_json(const ch_study *s, int arm) {
  json_t *runs = json_array();
  for (int seed = 1; seed <= s->seeds && s->arm[arm].rate > 0; seed++) {
    choir_config config;
    char name[CH_RUN_NAME], path[PATH_MAX];
    ch_study_config(s, arm, s->arm[arm].rate, seed, s->steps, &config);
    if (ch_study_run_name(s, &config, name)) continue;
    ch_study_run_path(s, name, path);
    ch_json_add(runs, json_pack("{s:i, s:s, s:I, s:I}", "seed", seed, "name", name, "step",
                                (json_int_t)ch_job_saved_steps(path), "steps", (json_int_t)s->steps));
  }
  return runs;
}

/* Runs of fine-tuning that have ended, and all of them. */
static json_t *tuned_json(const ch_study *s) {
  int ended = 0, all = s->tune.tasks * s->arms * s->seeds;
  for (int i = 0; i < all; i++) {
    int arm = i / s->seeds % s->arms;
    char name[CH_RUN_NAME], path[PATH_MAX];
    if (!(s->arm[arm].rate > 0)) continue;
    if (ch_study_tuned_name(s, i / s->seeds / s->arms, arm, 1 + i % s->seeds, name)) continue;
    ch_study_tuned_path(s, name, path);
    ended += ch_job_saved_steps(path) >= s->tune.steps;
  }
  return all ? json_pack("{s:i, s:i}", "ended", ended, "runs", all) : json_null();
}

static int add_study(void *context, ch_study *s) {
  json_t *arms = json_array(), *summary = NULL;
  char path[PATH_MAX + 16];
  CH_TRY(ch_study_find_rates(s));
  for (int i = 0; i < s->arms; i++)
    ch_json_add(arms, json_pack("{s:s, s:o, s:o}", "name", s->arm[i].name, "rate",
                                s->arm[i].rate > 0 ? json_real(s->arm[i].rate) : json_null(), "runs", runs_json(s, i)));
  snprintf(path, sizeof path, "%s/summary.json", s->own);
  if (ch_json_load(path, &summary)) summary = json_null();
  ch_json_add(context, json_pack("{s:s, s:s, s:s, s:o, s:o, s:o}", "name", s->name, "scale", s->scale_name, "directory",
                                 s->own, "arms", arms, "tuned", tuned_json(s), "summary", summary));
  return CHOIR_OK;
}

int choir_study_status(const char *directory, char **json) {
  json_t *array = json_array();
  int code = ch_study_each(directory, add_study, array);
  *json = code ? NULL : ch_json_dump(array, JSON_INDENT(2));
  json_decref(array);
  return code || *json ? code : ch_error(CHOIR_ERROR_MEMORY, "no memory for a status");
}
