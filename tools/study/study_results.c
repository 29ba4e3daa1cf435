/* What runs wrote, cut to the study's budget; and which rate was best. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "pages/history.h"
#include "study/study.h"
#include "study/study_values.h"

/* A line of an evaluation: the loss of its own routing, and the causal one, which is the same where nothing is looked
 * at. */
static int add_evaluation(ch_study_curve *c, json_t *line) {
  json_t *causal = json_object_get(line, "threshold");
  c->step[c->count] = ch_number_at(line, "step");
  c->own[c->count] = ch_number_at(line, "loss");
  c->causal[c->count] =
      json_is_true(json_object_get(line, "looks_across_tokens")) ? ch_number_at(causal, "loss") : c->own[c->count];
  c->last = line;
  c->last_causal = causal ? causal : line;
  c->count++;
  return CHOIR_OK;
}

/* Mean of a curve of training steps over its last tenth before `steps`. */
static double late_mean(const ch_curve *curve, int64_t steps) {
  double sum = 0;
  int count = 0;
  for (int i = 0; i < curve->count; i++)
    if (curve->x[i] > 0.9 * (double)steps && curve->x[i] <= (double)steps) sum += curve->y[i], count++;
  return count ? sum / count : (double)NAN;
}

static int read_curve(ch_history *h, int64_t steps, ch_study_curve *c) {
  size_t most = json_array_size(h->evals), i;
  json_t *line;
  double *room = calloc(3 * most + 1, sizeof *room);
  if (!room) return ch_error(CHOIR_ERROR_MEMORY, "no memory for %zu evaluations", most);
  c->step = room, c->own = room + most, c->causal = room + 2 * most;
  json_array_foreach(h->evals, i, line) if (ch_number_at(line, "step") <= (double)steps)
      CH_TRY(add_evaluation(c, line));
  c->complete = c->count > 0 && c->step[c->count - 1] == (double)steps;
  c->dropped = late_mean(&h->curve[CH_DROPPED], steps);
  c->imbalance = late_mean(&h->curve[CH_IMBALANCE], steps);
  c->history = json_incref(h->evals);
  return CHOIR_OK;
}

int ch_study_curve_read(const char *run_directory, int64_t steps, ch_study_curve *curve) {
  char path[PATH_MAX + 32];
  ch_history history;
  *curve = (ch_study_curve){.dropped = (double)NAN, .imbalance = (double)NAN};
  snprintf(path, sizeof path, "%s/metrics.jsonl", run_directory);
  if (access(path, R_OK)) return CHOIR_OK;                       /* not begun */
  if (ch_history_read(run_directory, &history)) return CHOIR_OK; /* no step yet */
  int code = read_curve(&history, steps, curve);
  ch_history_free(&history);
  return code;
}

void ch_study_curve_free(ch_study_curve *c) {
  free(c->step);
  json_decref(c->history);
  *c = (ch_study_curve){0};
}

int ch_study_best_rate(const ch_study *s, int arm, double *losses, double *best) {
  double least = INFINITY;
  *best = s->rates == 1 ? s->rate[0] : 0; /* nothing to search */
  for (int r = 0; r < s->rates; r++) {
    choir_config config;
    char name[CH_RUN_NAME], path[PATH_MAX];
    ch_study_curve curve;
    ch_study_config(s, arm, s->rate[r], 1, s->rate_steps, &config);
    CH_TRY(ch_study_run_name(s, &config, name));
    ch_study_run_path(s, name, path);
    CH_TRY(ch_study_curve_read(path, s->rate_steps, &curve));
    losses[r] = curve.complete ? curve.causal[curve.count - 1] : (double)NAN;
    if (losses[r] < least) least = losses[r], *best = s->rate[r];
    ch_study_curve_free(&curve);
  }
  return CHOIR_OK;
}

int ch_study_find_rates(ch_study *s) {
  double losses[CH_STUDY_RATES];
  for (int i = 0; i < s->arms; i++)
    if (s->arm[i].rate_of == i) CH_TRY(ch_study_best_rate(s, i, losses, &s->arm[i].rate));
  for (int i = 0; i < s->arms; i++) s->arm[i].rate = s->arm[s->arm[i].rate_of].rate;
  return CHOIR_OK;
}
