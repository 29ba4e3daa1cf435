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

enum { CH_CURVES = 12 };

typedef struct ch_history {
  ch_curve curve[CH_CURVES]; /* over steps; the first one is the loss in training */
  json_t *run;               /* the "run" line, or NULL */
  json_t *eval;              /* the last "eval" line, or NULL */
  double tokens;             /* seen in training */
} ch_history;

/* Of a run directory. Lines that cannot be read are left out, with a notice; CHOIR_ERROR_FORMAT where none has a step.
 */
int ch_history_read(const char *run_directory, ch_history *history);

/* Of open files, with or without a step: fuzzing. */
int ch_history_parse(FILE *metrics, FILE *timing, ch_history *history);
void ch_history_free(ch_history *history);

/* The same for a page: {"name", "run", "eval", "steps", "tokens", "curves": {NAME: {"x", "y", "last", "median"}}}. A
 * long curve has means of neighbours, so many that one more would not show; last and median are of all its points. */
json_t *ch_history_json(const char *name, const ch_history *history);

#endif
