/* Pieces of a study's page. */
#ifndef CH_STUDY_TABLES_H
#define CH_STUDY_TABLES_H

#include <jansson.h>
#include <stdio.h>

/* ---- study_tables.c: every table of the page ---- */

void ch_study_write_tables(FILE *out, const json_t *summary);

/* ---- study_charts.c: every chart; to files in `directory` where that is given, else into the page ---- */

int ch_study_write_charts(FILE *out, const json_t *summary, const char *directory);

#endif
