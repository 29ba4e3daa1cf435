/* Report pages of runs, and the logs of runs as curves. */
#ifndef CH_PAGES_REPORT_H
#define CH_PAGES_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "base/buffer.h"

enum { CH_REPORT_MAX = 16 };

/* Writes one HTML file about a run: curves of losses, speed and gradients, experts per token, load of every expert,
 * the config. For several runs, up to CH_REPORT_MAX: a table of their results, the fields in which their configs
 * differ, and their curves in common charts. The file is self-contained and needs no network. Reads metrics.jsonl and,
 * if it exists, timing.jsonl in each directory; an incomplete last line is skipped, so the run may still be in
 * progress. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT (a run without a step), CHOIR_ERROR_MEMORY. */
int ch_report_write(const char *const *run_directories, int count, const char *output);

/* A curve: points with increasing x. */
typedef struct ch_curve {
  double *x, *y;
  int count;
  ch_buffer xs, ys; /* own xs and ys */
} ch_curve;

enum { CH_CURVES = 13 };

typedef struct ch_history {
  ch_curve curve[CH_CURVES]; /* over steps; the first one is the training loss */
  json_t *run;               /* the "run" line, or NULL */
  json_t *eval;              /* the last "eval" line, or NULL */
  json_t *process;           /* the first "process" line: date, host, threads; or NULL */
  json_t *samples;           /* "sample" lines, by step; or NULL */
  double tokens;             /* number of training tokens */
  double seconds;            /* of all steps, including those that a resumed run repeated */
} ch_history;

/* Reads a run directory. Unreadable lines are skipped, with a notice; CHOIR_ERROR_FORMAT if no line has a step. */
int ch_history_read(const char *run_directory, ch_history *history);

/* Reads open files, with or without a step: for fuzzing. */
int ch_history_parse(FILE *metrics, FILE *timing, ch_history *history);
void ch_history_free(ch_history *history);

/* The history for a page: {"name", "run", "eval", "process", "samples", "steps", "tokens", "seconds", "curves":
 * {NAME: {"x", "y", "last", "median"}}}. A long curve is reduced to means of neighboring points; last and median are of
 * all points. Of many samples some are kept, always including the last one. */
json_t *ch_history_json(const char *name, const ch_history *history);

#endif
