#include "base/names.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static int by_text(const void *a, const void *b) {
  const ch_name *x = a, *y = b;
  int order = strcmp(x->text, y->text);
  return order ? order : x->number - y->number;
}

int ch_names_build(ch_names *names, int count, const char *first, size_t stride) {
  *names = (ch_names){.count = count};
  CH_TRY(CH_ALLOC(&names->sorted, count, "a list of names"));
  for (int i = 0; i < count; i++) names->sorted[i] = (ch_name){first + (size_t)i * stride, i};
  qsort(names->sorted, (size_t)count, sizeof *names->sorted, by_text);
  return CHOIR_OK;
}

void ch_names_free(ch_names *names) {
  free(names->sorted);
  *names = (ch_names){0};
}

int ch_names_find(const ch_names *names, const char *text) {
  int low = 0, high = names->count; /* lower bound of `text` */
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (strcmp(names->sorted[middle].text, text) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low < names->count && !strcmp(names->sorted[low].text, text) ? names->sorted[low].number : -1;
}
