/* Reports about runs, for people. */
#ifndef CH_PAGES_REPORT_H
#define CH_PAGES_REPORT_H

#include "choir/error.h"

enum { CH_REPORT_MOST = 16 };

/* Writes one HTML file about a run: curves of losses, speed and gradients, experts per token, load of every expert, the
 * config. About several, up to CH_REPORT_MOST: a table of their results, the fields in which their configs differ, and
 * their curves laid over each other. The file holds everything it shows and needs no network. Reads metrics.jsonl and,
 * where there is one, timing.jsonl in each directory; a line that is still being written at the end of either is left
 * out, so a run may be looked at while it goes on. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT (a run
 * without a step), CHOIR_ERROR_MEMORY. */
int ch_report_write(const char *const *run_directories, int count, const char *output);

#endif
