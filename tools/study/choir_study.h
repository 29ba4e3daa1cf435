/* Experiments: many training runs that answer one question. docs/studies.md. */
#ifndef CH_STUDY_CHOIR_STUDY_H
#define CH_STUDY_CHOIR_STUDY_H

#include <stdint.h>

#include "choir/error.h"

typedef enum {
  CHOIR_STUDY_PROGRESS, /* often: how far everything is */
  CHOIR_STUDY_MESSAGE   /* a line to keep: what was decided, what failed */
} choir_study_event_kind;

typedef struct choir_study_event {
  choir_study_event_kind kind;
  int done, running, failed, total; /* jobs of the present phase */
  double seconds_left;              /* of this phase; NaN: unknown */
  const char *text;                 /* PROGRESS: the phase and what runs; MESSAGE: the line */
} choir_study_event;

typedef struct choir_study_options {
  const char *recipe;  /* a name of choir_study_recipe, or a file */
  const char *data;    /* a built data directory; NULL: that of the study that stands in `out` */
  const char *out;     /* directory of one or more studies, which share runs */
  const char *scale;   /* "pico", "nano", "small", "0.1b", or a file; NULL: "pico" */
  const char *program; /* the program `choir`, which does the runs */
  int seeds;           /* 0: the scale's */
  int64_t tokens;      /* of one run; 0: the scale's */
  int jobs;            /* runs at once, on disjoint CPUs; 0: one for every CPU */
  double minutes;      /* stop after so many; 0: never */
  int (*event)(void *context, const choir_study_event *event); /* or NULL; nonzero: save and stop */
  void *context;
  const char *tasks;  /* a folder for each labelled task; a recipe that fine-tunes needs it */
  const char *words;  /* what `bench/bag_of_words --json` printed, to stand beside the accuracies; or NULL */
  int64_t tune_steps; /* of fine-tuning on one task; 0: the scale's */
  int64_t tune_rows;  /* of a dev set that are measured; 0: the scale's */
} choir_study_options;
#define CHOIR_STUDY_OPTIONS_INIT \
  { 0 }

/* Runs a recipe: searches rates, trains every arm with every seed, measures, writes OUT/NAME-SCALE/summary.json and
 * report.html. What is there already is used: finished runs are skipped, cut-off ones resumed. A run that fails is told
 * and counted in *failed, and the others go on. Returns when all children have ended. CHOIR_ERROR_INTERRUPTED: stopped
 * by the event function or by the time; CHOIR_ERROR_BUSY: another process studies there. */
int choir_study_run(const choir_study_options *options, int *failed);

/* Writes summary and report of every study in a directory from the runs as they are; `told` (or NULL) hears the path of
 * each page. */
int choir_study_report(const char *directory, void (*told)(void *context, const char *page), void *context);

/* What stands in a directory, as JSON text to be freed by the caller: an array of {study, arms: [{name, rate, runs:
 * [{name, step, steps}]}], tuned: {ended, runs} of fine-tuning or null, summary}. CHOIR_ERROR_FORMAT: no study there.
 */
int choir_study_status(const char *directory, char **json);

/* The recipes that are built in, by number from 0: name, title and question; NULL behind the last. */
typedef struct choir_study_recipe_info {
  char name[64], title[128], question[512], figure[128];
  int arms, claims;
} choir_study_recipe_info;
int choir_study_recipe(int index, choir_study_recipe_info *info); /* 0: none of this number */

typedef struct choir_study_measure_options {
  const char *run;   /* a run directory: its newest checkpoint */
  const char *data;  /* a built data directory: its held-out share */
  const char *out;   /* the JSON file to write */
  int64_t sequences; /* at most; 0: all */
  int threads;
} choir_study_measure_options;
#define CHOIR_STUDY_MEASURE_OPTIONS_INIT \
  { 0 }

/* Evaluates a run by every routing that looks across tokens, in pools of several sizes, of neighbouring and of
 * scattered sequences, and causally; and counts which kinds of tokens got how many experts. */
int choir_study_measure(const choir_study_measure_options *options);

#endif
