/* Rows of a table by their names, where there may be thousands. */
#ifndef CH_BASE_NAMES_H
#define CH_BASE_NAMES_H

#include <stddef.h>

#include "base/error.h"

typedef struct ch_name {
  const char *text; /* the table's own */
  int number;       /* of the row */
} ch_name;

typedef struct ch_names {
  int count;
  ch_name *sorted;
} ch_names;

/* first: the name of row 0; that of row i is i * stride bytes after it, and must stay. CHOIR_ERROR_MEMORY. */
int ch_names_build(ch_names *names, int count, const char *first, size_t stride);
void ch_names_free(ch_names *names);

/* Number of the first row called `text`; -1: no such row. */
int ch_names_find(const ch_names *names, const char *text);

#endif
