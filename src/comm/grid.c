#include "comm/grid.h"

#include <stdio.h>

#include "base/error.h"

/* A single process exchanges nothing, so its table has no functions. */
const ch_comm ch_comm_single = {.name = "single", .rank = 0, .size = 1, .stride = 1, .piece = INT64_MAX};

ch_comm ch_comm_group(const ch_comm *all, int first, int stride, int size) {
  ch_comm group = *all;
  group.rank = (all->rank - first) / stride;
  group.size = size;
  group.first = ch_comm_number(all, first);
  group.stride = all->stride * stride;
  return group;
}

/* The divisors as text: "1, 2, 4" for 4. */
static const char *divisors(int number, char *text, size_t size) {
  size_t used = 0;
  for (int i = 1; i <= number && used < size; i++)
    if (number % i == 0) used += (size_t)snprintf(text + used, size - used, "%s%d", used ? ", " : "", i);
  return text;
}

/* Checks that `parts` (replicas or hidden shards) divides `ranks`; *left: the quotient. */
static int divide(const char *what, int parts, int ranks, const char *of, int *left) {
  char text[256];
  *left = parts < 1 ? 0 : ranks / parts;
  if (parts >= 1 && ranks % parts == 0) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT,
                  "%d %s of the experts on %d process%s%s, which they must divide: take one of %s, or start another "
                  "number of processes",
                  parts, what, ranks, ranks == 1 ? "" : "es", of, divisors(ranks, text, sizeof text));
}

int ch_grid_make(const ch_comm *all, int replicas, int hidden, ch_grid *grid) {
  int of_replica, groups;
  CH_TRY(divide("replicas", replicas, all->size, "", &of_replica));
  CH_TRY(divide("hidden shards", hidden, of_replica, replicas > 1 ? " of a replica" : "", &groups));
  int in_replica = all->rank % of_replica, first = all->rank - in_replica, shard = in_replica % hidden;
  grid->replica = ch_comm_group(all, first, 1, of_replica);
  grid->dp_group = ch_comm_group(all, in_replica, of_replica, replicas);
  grid->ep_group = ch_comm_group(all, first + shard, hidden, groups);
  grid->tp_group = ch_comm_group(all, all->rank - shard, 1, hidden);
  return CHOIR_OK;
}
