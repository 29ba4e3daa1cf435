#include "comm/grid.h"

#include <stdio.h>

#include "base/error.h"

ch_comm ch_comm_group(const ch_comm *all, int first, int stride, int size) {
  ch_comm group = *all;
  group.rank = (all->rank - first) / stride;
  group.size = size;
  group.first = ch_comm_number(all, first);
  group.stride = all->stride * stride;
  return group;
}

/* "1, 2, 4" for 4. */
static const char *divisors(int number, char *text, size_t size) {
  size_t used = 0;
  for (int i = 1; i <= number && used < size; i++)
    if (number % i == 0) used += (size_t)snprintf(text + used, size - used, "%s%d", used ? ", " : "", i);
  return text;
}

int ch_grid_make(const ch_comm *all, int replicas, ch_grid *grid) {
  char text[256];
  if (replicas < 1 || all->size % replicas)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "%d replicas of the experts on %d process%s, which they must divide: take one of %s, or start "
                    "another number of processes",
                    replicas, all->size, all->size == 1 ? "" : "es", divisors(all->size, text, sizeof text));
  int experts = all->size / replicas, group = all->rank % experts;
  grid->replica = ch_comm_group(all, all->rank - group, 1, experts);
  grid->holders = ch_comm_group(all, group, experts, replicas);
  grid->hidden = ch_comm_group(all, all->rank, 1, 1); /* nothing is cut yet: it has all columns */
  return CHOIR_OK;
}
