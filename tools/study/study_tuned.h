/* What fine-tuning came to: accuracies of every task, arm and seed, and what they say. */
#ifndef CH_STUDY_TUNED_H
#define CH_STUDY_TUNED_H

#include "study/study.h"

/* One run that has ended; accuracies in percent. */
typedef struct ch_tuned_run {
  char name[CH_RUN_NAME];
  double own, batch; /* causal (by thresholds), by batch routing where that is another; NaN: not there */
  json_t *result;    /* result.json, or NULL */
} ch_tuned_run;

typedef struct ch_tuned {
  const ch_study *study;
  ch_tuned_run *run; /* [tasks * arms * seeds] */
} ch_tuned;

/* All runs as they are; *tuned NULL where the study fine-tunes nothing. */
int ch_tuned_read(const ch_study *study, ch_tuned **tuned);
void ch_tuned_free(ch_tuned *tuned);

/* How many points the arm's average is above its rival's, with one seed; NaN where one has none. causal 0: by batch
 * routing where an arm looks across tokens. */
double ch_tuned_advantage(const ch_tuned *tuned, int arm, int rival, int seed, int causal);

/* Whether the arm is above the commonest label of any task, by more than two standard errors. */
int ch_tuned_learned(const ch_tuned *tuned, int arm);

/* "tuned" of summary.json. */
json_t *ch_tuned_json(const ch_tuned *tuned);

/* ---- study_tuned_table.c ---- */

void ch_tuned_page(FILE *out, const json_t *tuned);             /* HTML */
int ch_tuned_markdown(const json_t *summary, const char *path); /* the same as a file */

#endif
