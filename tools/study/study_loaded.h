/* All that a study's runs wrote, in memory, and what is computed from it. */
#ifndef CH_STUDY_LOADED_H
#define CH_STUDY_LOADED_H

#include "study/study.h"
#include "study/study_statistics.h"
#include "study/study_tuned.h"

typedef struct ch_loaded {
  const ch_study *study;
  ch_study_curve *curve;     /* [arms * seeds]; seeds count from 1 */
  json_t **measures;         /* [arms * seeds] measures.json, or NULL */
  char (*name)[CH_RUN_NAME]; /* [arms * seeds] */
  json_t *time;              /* time.json, or NULL */
  ch_tuned *tuned;           /* of all tasks, or NULL */
} ch_loaded;

int ch_loaded_read(const ch_study *study, ch_loaded *loaded);
void ch_loaded_free(ch_loaded *loaded);

static inline ch_study_curve *ch_loaded_curve(const ch_loaded *l, int arm, int seed) {
  return &l->curve[arm * l->study->seeds + seed - 1];
}

/* A figure of an arm's step, "step", "expert", "load", "demand", round by round; gives their number. */
int ch_loaded_times(const ch_loaded *loaded, int arm, const char *what, double *values, int most);
/* The median time of a step in seconds, or NaN. */
double ch_loaded_step_seconds(const ch_loaded *loaded, int arm);
/* What a step takes, by rounds, if every expert had a device: expert work as long as the fullest expert's share of it.
 * "load": tokens that it holds; "demand": that asked for it. */
int ch_loaded_device_times(const ch_loaded *loaded, int arm, const char *what, double *values, int most);

/* The reach of smoothing, in intervals between evaluations. */
#define CH_STUDY_REACH 4.0

/* The arm that another one is compared with: the first of the recipe, at the same value of what is swept. */
int ch_study_reference(const ch_study *study, int arm);

/* ---- study_timing.c ---- */

/* Step times and what follows from them, beside those of the reference; null where nothing was timed. */
json_t *ch_study_timing(const ch_loaded *loaded);

/* ---- study_claims.c ---- */

/* Every claim of the recipe with what was measured and a verdict by the rule of docs/studies.md. */
json_t *ch_study_claims(const ch_loaded *loaded);

#endif
