/* Results of fine-tuning: read, averaged, compared. */
#include "study/study_tuned.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "file/json.h"
#include "study/study_jobs.h"
#include "study/study_values.h"

/* ---- reading ---- */

static ch_tuned_run *run_of(const ch_tuned *t, int task, int arm, int seed) {
  return &t->run[(task * t->study->arms + arm) * t->study->seeds + seed - 1];
}

/* Nothing of a run that has not all its steps: its best is a maximum over fewer evaluations. */
static int read_run(const ch_tuned *t, int task, int arm, int seed) {
  const ch_study *s = t->study;
  ch_tuned_run *r = run_of(t, task, arm, seed);
  char path[PATH_MAX], file[PATH_MAX + 16];
  r->own = r->batch = (double)NAN;
  if (!(s->arm[arm].rate > 0)) return CHOIR_OK;
  CH_TRY(ch_study_tuned_name(s, task, arm, seed, r->name));
  ch_study_tuned_path(s, r->name, path);
  if (ch_job_saved_steps(path) < s->tune.steps) return CHOIR_OK;
  snprintf(file, sizeof file, "%s/result.json", path);
  CH_TRY(ch_json_load(file, &r->result));
  CH_TRY(ch_study_check_result(file, r->result));
  r->own = 100 * ch_number_at(json_object_get(r->result, "own"), "accuracy");
  r->batch = 100 * ch_number_at(json_object_get(r->result, "batch"), "accuracy");
  return CHOIR_OK;
}

int ch_tuned_read(const ch_study *s, ch_tuned **tuned) {
  size_t runs = (size_t)s->tune.tasks * (size_t)s->arms * (size_t)s->seeds;
  *tuned = NULL;
  if (!runs) return CHOIR_OK;
  ch_tuned *t = *tuned = calloc(1, sizeof **tuned);
  if (t) t->study = s, t->run = calloc(runs, sizeof *t->run);
  if (!t || !t->run) return ch_error(CHOIR_ERROR_MEMORY, "no memory for %zu runs", runs);
  for (int task = 0; task < s->tune.tasks; task++)
    for (int arm = 0; arm < s->arms; arm++)
      for (int seed = 1; seed <= s->seeds; seed++) CH_TRY(read_run(t, task, arm, seed));
  return CHOIR_OK;
}

void ch_tuned_free(ch_tuned *t) {
  if (!t) return;
  for (int i = 0; t->run && i < t->study->tune.tasks * t->study->arms * t->study->seeds; i++)
    json_decref(t->run[i].result);
  free(t->run);
  free(t);
}

/* ---- numbers ---- */

/* An arm that looks at no other token has one accuracy. */
static double accuracy(const ch_tuned_run *r, int causal) { return causal || isnan(r->batch) ? r->own : r->batch; }

static ch_estimate over_seeds(const ch_tuned *t, int task, int arm, int causal) {
  double values[CH_STUDY_SEEDS];
  int count = 0;
  for (int seed = 1; seed <= t->study->seeds; seed++) {
    double value = accuracy(run_of(t, task, arm, seed), causal);
    if (isfinite(value)) values[count++] = value;
  }
  return ch_estimate_of(values, count);
}

/* More above the commonest label than twice what chance does, in the rows of the dev set and over seeds. */
static int is_above(const ch_tuned *t, int task, int arm) {
  ch_estimate e = over_seeds(t, task, arm, 1);
  const json_t *result = NULL; /* every seed has the same rows */
  for (int seed = 1; seed <= t->study->seeds && !result; seed++) result = run_of(t, task, arm, seed)->result;
  double p = e.mean / 100, rows = ch_number_at(json_object_get(result, "own"), "labelled"),
         error = 1e4 * p * (1 - p) / rows;
  if (e.count > 1) error += e.deviation * e.deviation / e.count;
  return e.mean - 100 * ch_number_at(result, "majority") > 2 * sqrt(error);
}

int ch_tuned_learned(const ch_tuned *t, int arm) {
  for (int task = 0; t && arm >= 0 && task < t->study->tune.tasks; task++)
    if (is_above(t, task, arm)) return 1;
  return 0;
}

/* Whether every arm has the task with this seed, but for arms that have nothing at all. */
static int is_whole(const ch_tuned *t, int task, int seed) {
  int whole = 0;
  for (int arm = 0; arm < t->study->arms; arm++) {
    int here = isfinite(run_of(t, task, arm, seed)->own), anywhere = 0;
    for (int other = 0; other < t->study->tune.tasks; other++) anywhere |= over_seeds(t, other, arm, 1).count;
    if (anywhere && !here) return 0;
    whole |= here;
  }
  return whole;
}

/* Averages are over the same tasks in all arms and seeds: over tasks that are whole with some seed, */
static int is_averaged(const ch_tuned *t, int task) {
  int averaged = 0;
  for (int seed = 1; seed <= t->study->seeds; seed++) averaged |= is_whole(t, task, seed);
  return averaged;
}

/* and with seeds that have all of these. NaN: the seed has not, or the arm has nothing. */
static double average_of(const ch_tuned *t, int arm, int seed, int causal) {
  double sum = 0;
  int count = 0;
  for (int task = 0; task < t->study->tune.tasks; task++) {
    if (!is_averaged(t, task)) continue;
    if (!is_whole(t, task, seed)) return (double)NAN;
    sum += accuracy(run_of(t, task, arm, seed), causal);
    count++;
  }
  return count ? sum / count : (double)NAN;
}

double ch_tuned_advantage(const ch_tuned *t, int arm, int rival, int seed, int causal) {
  if (!t || arm < 0 || rival < 0) return (double)NAN;
  return average_of(t, arm, seed, causal) - average_of(t, rival, seed, causal);
}

static ch_estimate average(const ch_tuned *t, int arm, int causal) {
  double values[CH_STUDY_SEEDS];
  int count = 0;
  for (int seed = 1; seed <= t->study->seeds; seed++) {
    double value = average_of(t, arm, seed, causal);
    if (isfinite(value)) values[count++] = value;
  }
  return ch_estimate_of(values, count);
}

/* ---- JSON ---- */

static json_t *both(ch_estimate own, ch_estimate batch, int two) {
  return json_pack("{s:o, s:o}", "own", ch_estimate_json(&own, 0), "batch",
                   two ? ch_estimate_json(&batch, 0) : json_null());
}

/* Whether batch routing is something else for this arm. */
static int has_batch(const ch_tuned *t, int arm) {
  for (int task = 0; task < t->study->tune.tasks; task++)
    for (int seed = 1; seed <= t->study->seeds; seed++)
      if (isfinite(run_of(t, task, arm, seed)->batch)) return 1;
  return 0;
}

static json_t *cell_json(const ch_tuned *t, int task, int arm) {
  json_t *cell = both(over_seeds(t, task, arm, 1), over_seeds(t, task, arm, 0), has_batch(t, arm)),
         *runs = json_array();
  static const char *const measures[] = {"own", "batch", NULL};
  for (int seed = 1; seed <= t->study->seeds; seed++) {
    const ch_tuned_run *r = run_of(t, task, arm, seed);
    json_t *run = json_pack("{s:i, s:s, s:o}", "seed", seed, "name", r->name, "best_step",
                            ch_json_number(ch_number_at(r->result, "step")));
    for (int i = 0; measures[i]; i++) {
      json_t *measure = json_object_get(r->result, measures[i]);
      ch_json_put(run, measures[i], measure ? json_incref(measure) : json_null());
    }
    ch_json_add(runs, run);
  }
  ch_json_put(cell, "above", json_boolean(is_above(t, task, arm)));
  ch_json_put(cell, "runs", runs);
  return cell;
}

/* The paper's figures of an arm. Their average stays where it is over the tasks that are averaged here; an average
 * without figures is over all tasks. Else it is that of the figures. */
static json_t *paper_json(const ch_tuned *t, const json_t *figures) {
  const ch_study_tune *tune = &t->study->tune;
  json_t *json = json_deep_copy(figures);
  int given = (int)json_object_size(figures) - (json_object_get(figures, "average") != NULL), count = 0;
  double sum = 0;
  for (int task = 0; task < tune->tasks; task++)
    if (is_averaged(t, task)) sum += ch_number_at(figures, tune->task[task].name), count++;
  int same = given ? given == count && isfinite(sum) : count == tune->tasks && !json_array_size(tune->missing);
  if (!same) ch_json_put(json, "average", ch_json_number(count ? sum / count : (double)NAN));
  return json;
}

static json_t *arm_json(const ch_tuned *t, int arm) {
  const json_t *paper = json_object_get(json_object_get(t->study->recipe, "tune"), "paper");
  const char *name = t->study->arm[arm].name;
  json_t *figures = json_object_get(paper, name), *cells = json_array();
  for (int task = 0; task < t->study->tune.tasks; task++) ch_json_add(cells, cell_json(t, task, arm));
  return json_pack("{s:s, s:o, s:o, s:o}", "name", name, "tasks", cells, "average",
                   both(average(t, arm, 1), average(t, arm, 0), has_batch(t, arm)), "paper",
                   figures ? paper_json(t, figures) : json_null());
}

static json_t *task_json(const ch_tuned *t, int task) {
  static const char *const keys[] = {"train", "dev", "majority", "majority_label", NULL};
  const ch_study *s = t->study;
  const char *name = s->tune.task[task].name;
  const json_t *first = NULL;
  json_t *json = json_pack("{s:s, s:b}", "name", name, "averaged", is_averaged(t, task));
  for (int i = 0; i < s->arms * s->seeds && !first; i++) first = t->run[task * s->arms * s->seeds + i].result;
  for (int i = 0; keys[i]; i++) ch_json_share(json, keys[i], json_object_get(first, keys[i]));
  ch_json_put(json, "majority", ch_json_number(100 * ch_number_at(first, "majority")));
  ch_json_put(json, "words", ch_json_number(100 * ch_number_at(s->tune.words, name)));
  return json;
}

/* Every pair of arms: the difference of averages, seed by seed. */
static json_t *pairs_json(const ch_tuned *t) {
  json_t *pairs = json_array();
  for (int a = 0; a < t->study->arms; a++)
    for (int b = a + 1; b < t->study->arms; b++) {
      double values[CH_STUDY_SEEDS];
      int count = 0;
      for (int seed = 1; seed <= t->study->seeds; seed++) {
        double value = ch_tuned_advantage(t, a, b, seed, 1);
        if (isfinite(value)) values[count++] = value;
      }
      ch_estimate e = ch_estimate_of(values, count);
      ch_json_add(pairs, json_pack("{s:s, s:s, s:o}", "arm", t->study->arm[a].name, "rival", t->study->arm[b].name,
                                   "points", ch_estimate_json(&e, 0)));
    }
  return pairs;
}

json_t *ch_tuned_json(const ch_tuned *t) {
  const ch_study *s = t->study;
  const json_t *tune = json_object_get(s->recipe, "tune");
  json_t *tasks = json_array(), *arms = json_array(), *note = json_object_get(tune, "paper_note");
  for (int task = 0; task < s->tune.tasks; task++) ch_json_add(tasks, task_json(t, task));
  for (int arm = 0; arm < s->arms; arm++) ch_json_add(arms, arm_json(t, arm));
  return json_pack(
      "{s:I, s:I, s:I, s:i, s:s, s:O, s:o, s:o, s:o, s:o}", "steps", (json_int_t)s->tune.steps, "eval_every",
      (json_int_t)s->tune.eval_every, "rows", (json_int_t)s->tune.rows, "batch_sequences", s->tune.batch_sequences,
      "recipe", *ch_text_at(tune, "recipe") ? ch_text_at(tune, "recipe") : "constant", "missing", s->tune.missing,
      "tasks", tasks, "arms", arms, "pairs", pairs_json(t), "paper_note", note ? json_incref(note) : json_string(""));
}
