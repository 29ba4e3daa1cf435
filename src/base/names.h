/* Index of a table's rows by name, for tables with thousands of rows. */
#ifndef CH_BASE_NAMES_H
#define CH_BASE_NAMES_H

#include <stddef.h>

#include "base/error.h"

typedef struct ch_name {
  const char *text; /* points into the table */
  int number;       /* of the row */
} ch_name;

typedef struct ch_names {
  int count;
  ch_name *sorted;
} ch_names;

/* first: the name of row 0; the name of row i is i * stride bytes later. Names must outlive the index.
 * CHOIR_ERROR_MEMORY. */
int ch_names_build(ch_names *names, int count, const char *first, size_t stride);
void ch_names_free(ch_names *names);

/* Number of the first row named `text`; -1: no such row. */
int ch_names_find(const ch_names *names, const char *text);

#endif
