#include "study/study_loaded.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "file/json.h"

static int read_run(ch_loaded *l, int arm, int seed) {
  const ch_study *s = l->study;
  int at = arm * s->seeds + seed - 1;
  choir_config config;
  char path[PATH_MAX];
  if (!(s->arm[arm].rate > 0)) return CHOIR_OK;
  ch_study_config(s, arm, s->arm[arm].rate, seed, s->steps, &config);
  CH_TRY(ch_study_run_name(s, &config, l->name[at]));
  ch_study_run_path(s, l->name[at], path);
  CH_TRY(ch_study_curve_read(path, s->steps, &l->curve[at]));
  l->measures[at] = ch_study_measures_read(s, l->name[at]);
  return CHOIR_OK;
}

int ch_loaded_read(const ch_study *s, ch_loaded *l) {
  char path[PATH_MAX + 16];
  size_t runs = (size_t)(s->arms * s->seeds) + 1;
  *l = (ch_loaded){.study = s};
  l->curve = calloc(runs, sizeof *l->curve);
  l->measures = calloc(runs, sizeof *l->measures);
  l->name = calloc(runs, sizeof *l->name);
  if (!l->curve || !l->measures || !l->name) return ch_error(CHOIR_ERROR_MEMORY, "no memory for %zu runs", runs);
  for (int arm = 0; arm < s->arms; arm++)
    for (int seed = 1; seed <= s->seeds; seed++) CH_TRY(read_run(l, arm, seed));
  CH_TRY(ch_tuned_read(s, &l->tuned));
  snprintf(path, sizeof path, "%s/time.json", s->own);
  if (access(path, R_OK)) return CHOIR_OK;
  CH_TRY(ch_json_load(path, &l->time));
  return ch_study_check_time(path, l->time);
}

void ch_loaded_free(ch_loaded *l) {
  for (int i = 0; l->curve && l->measures && i < l->study->arms * l->study->seeds; i++) {
    ch_study_curve_free(&l->curve[i]);
    json_decref(l->measures[i]);
  }
  free(l->curve);
  free(l->measures);
  free(l->name);
  json_decref(l->time);
  ch_tuned_free(l->tuned);
}

int ch_loaded_times(const ch_loaded *l, int arm, const char *what, double *values, int most) {
  const json_t *arms = json_object_get(l->time, "arms"), *row = json_object_get(arms, l->study->arm[arm].name),
               *array = json_object_get(row, what), *value;
  size_t i;
  int count = 0;
  json_array_foreach(array, i, value) if (count < most) values[count++] = json_number_value(value);
  return count;
}

double ch_loaded_step_seconds(const ch_loaded *l, int arm) {
  double values[CH_STUDY_ROUNDS];
  int count = ch_loaded_times(l, arm, "step", values, CH_STUDY_ROUNDS);
  return ch_median(values, count);
}

int ch_loaded_device_times(const ch_loaded *l, int arm, const char *what, double *values, int most) {
  double step[CH_STUDY_ROUNDS], expert[CH_STUDY_ROUNDS], fullest[CH_STUDY_ROUNDS];
  int count = ch_loaded_times(l, arm, "step", step, CH_STUDY_ROUNDS);
  if (count > most) count = most;
  if (ch_loaded_times(l, arm, "expert", expert, CH_STUDY_ROUNDS) < count ||
      ch_loaded_times(l, arm, what, fullest, CH_STUDY_ROUNDS) < count)
    return 0;
  for (int i = 0; i < count; i++) values[i] = step[i] - expert[i] + expert[i] * fullest[i];
  return count;
}

int ch_study_reference(const ch_study *s, int arm) {
  for (int i = 0; i < s->arms; i++)
    if (s->arm[i].row == 0 && s->arm[i].column == s->arm[arm].column) return s->arm[arm].row ? i : 0;
  return 0;
}
