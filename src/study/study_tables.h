/* Pieces of a study's page. */
#ifndef CH_STUDY_TABLES_H
#define CH_STUDY_TABLES_H

#include <jansson.h>
#include <stdio.h>

/* ---- numbers out of a summary ---- */

double ch_summary_number(const json_t *object, const char *key);    /* NaN where there is none */
const char *ch_summary_text(const json_t *object, const char *key); /* "" where there is none */
/* "4.5123", or "-" where there is none; in one of a ring of buffers. */
const char *ch_summary_figure(const char *format, double value);
/* "0.031 (0.012 to 0.050)" of {mean, low, high}. */
const char *ch_summary_interval(const char *format, const json_t *estimate);

/* ---- study_tables.c: every table of the page ---- */

void ch_study_write_tables(FILE *out, const json_t *summary);

/* ---- study_charts.c: every chart; to files in `directory` where that is given, else into the page ---- */

int ch_study_write_charts(FILE *out, const json_t *summary, const char *directory);

#endif
