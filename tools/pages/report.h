/* Reports about runs, for people, and what a run wrote down, as curves. */
#ifndef CH_PAGES_REPORT_H
#define CH_PAGES_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "base/buffer.h"

enum { CH_REPORT_MAX = 16 };

/* Writes one HTML file about a run: curves of losses, speed and gradients, experts per token, load of every expert, the
 * config. About several, up to CH_REPORT_MOST: a table of their results, the fields in which their configs differ, and
 * their curves laid over each other. The file holds everything it shows and needs no network. Reads metrics.jsonl and,
 * where there is one, timing.jsonl in each directory; a line that is still being written at the end of either is left
 * out, so a run may be looked at while it goes on. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT (a run
 * without a step), CHOIR_ERROR_MEMORY. */
int ch_report_write(const char *const *run_directories, int count, const char *output);

/* Points with rising x. */
typedef struct ch_curve {
  double *x, *y;
  int count;
  ch_buffer xs, ys; /* which hold them */
} ch_curve;

enum { CH_CURVES = 13 };

typedef struct ch_history {
  ch_curve curve[CH_CURVES]; /* over steps; the first one is the loss in training */
  json_t *run;               /* the "run" line, or NULL */
  json_t *eval;              /* the last "eval" line, or NULL */
  json_t *process;           /* the first "process" line: date, host, threads; or NULL */
  json_t *samples;           /* "sample" lines, by step; or NULL */
  double tokens;             /* seen in training */
  double seconds;            /* of all steps, those too that a resumed run repeated */
} ch_history;

/* Of a run directory. Lines that cannot be read are left out, with a notice; CHOIR_ERROR_FORMAT where none has a step.
 */
int ch_history_read(const char *run_directory, ch_history *history);

/* Of open files, with or without a step: fuzzing. */
int ch_history_parse(FILE *metrics, FILE *timing, ch_history *history);
void ch_history_free(ch_history *history);

/* The same for a page: {"name", "run", "eval", "process", "samples", "steps", "tokens", "seconds", "curves": {NAME:
 * {"x", "y", "last", "median"}}}. A long curve has means of neighbours, so many that one more would not show; last and
 * median are of all its points. Of many samples some are kept, always the last one. */
json_t *ch_history_json(const char *name, const ch_history *history);

#endif
