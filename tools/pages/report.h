/* Reports about runs, for people. */
#ifndef CH_PAGES_REPORT_H
#define CH_PAGES_REPORT_H

#include "choir/error.h"

/* Writes one HTML file about a run: curves of losses, speed and gradients, experts per token, load of every expert, the
 * config. The file holds everything it shows and needs no network. Reads metrics.jsonl and, where there is one,
 * timing.jsonl in `run_directory`; a line that is still being written at the end of either is left out, so a run may be
 * looked at while it goes on. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT (file and line; or a run without a step),
 * CHOIR_ERROR_MEMORY. */
int ch_report_write(const char *run_directory, const char *output);

/* The same about 2 to 16 runs: a table of their results, the fields in which their configs differ, and their curves
 * laid over each other. CHOIR_ERROR_ARGUMENT: another number of runs; otherwise as ch_report_write. */
int ch_report_compare(const char *const *run_directories, int count, const char *output);

#endif
