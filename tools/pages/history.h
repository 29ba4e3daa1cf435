/* What a run wrote down, as curves. */
#ifndef CH_PAGES_HISTORY_H
#define CH_PAGES_HISTORY_H

#include <jansson.h>
#include <stdio.h>

/* Points with rising x. */
typedef struct ch_curve {
  double *x, *y;
  int count, room;
} ch_curve;

typedef enum {
  CH_LOSS,
  CH_AUX_LOSS,
  CH_RATE,
  CH_GRADIENT_NORM,
  CH_DROPPED,
  CH_UNROUTED,
  CH_IMBALANCE,
  CH_HELDOUT_LOSS,
  CH_THRESHOLD_LOSS,
  CH_BITS_PER_BYTE,
  CH_TOKENS_PER_SECOND,
  CH_PEAK_SHARE, /* per cent */
  CH_CURVES
} ch_curve_name;

typedef struct ch_history {
  ch_curve curve[CH_CURVES]; /* over steps */
  json_t *run;               /* the "run" line, or NULL */
  json_t *eval;              /* the last "eval" line, or NULL */
  json_t *evals;             /* all of them */
  double tokens;             /* seen in training */
} ch_history;

/* Of a run directory. Lines that cannot be read are left out, with a notice; CHOIR_ERROR_FORMAT where none has a step.
 */
int ch_history_read(const char *run_directory, ch_history *history);
/* The middle value, or the mean of the two in the middle; NaN of none. Sorts the values. */
double ch_median(double *values, int count);

/* The same of a curve's values: what a step usually takes, where the mean would count every pause. NaN: no memory, too.
 */
double ch_curve_median(const ch_curve *curve);

/* A field of a line; NaN where there is none. */
double ch_number_at(const json_t *object, const char *key);

/* Of open files, with or without a step: fuzzing. */
int ch_history_parse(FILE *metrics, FILE *timing, ch_history *history);
void ch_history_free(ch_history *history);

/* The page that shows it (report.c); run_directory is a title here. */
void ch_report_page(FILE *out, const char *run_directory, const ch_history *history);

/* The page that lays several beside each other (compare.c). */
void ch_compare_page(FILE *out, const char *const *run_directories, const ch_history *histories, int count);

#endif
