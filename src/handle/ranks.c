#include "handle/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/hash.h"
#include "comm/collective.h"
#include "comm/launch.h"
#include "comm/watch.h"

const ch_comm *ch_ranks_comm(const choir_ranks *ranks) { return ranks ? ranks->comm : &ch_comm_single; }

static int or_one(int parts) { return parts ? parts : 1; }

int ch_ranks_grid(const choir_ranks *ranks, ch_grid *grid) {
  if (!ranks) return ch_grid_make(&ch_comm_single, 1, 1, grid);
  return ch_grid_make(ranks->comm, or_one(ranks->replicas), or_one(ranks->hidden), grid);
}

int choir_ranks_create(choir_ranks **ranks) {
  CH_ENTER(ranks);
  CH_TRY(CH_ALLOC(ranks, 1, "a handle of ranks"));
  int code = ch_comm_join(&(*ranks)->comm);
  if (!code) return CHOIR_OK;
  free(*ranks);
  *ranks = NULL;
  return code;
}

void choir_ranks_free(choir_ranks *ranks) {
  if (!ranks) return;
  ch_comm_leave(ranks->comm);
  free(ranks);
}

int choir_ranks_agree(const choir_ranks *ranks, int code) { return ch_comm_agree(ch_ranks_comm(ranks), code); }

int choir_ranks_agree_message(const choir_ranks *ranks, int code, const char *text) {
  if (code) ch_error(code, "%s", text);
  return ch_comm_agree(ch_ranks_comm(ranks), code);
}

int choir_ranks_check_same(const choir_ranks *ranks, const char *what, const char *text) {
  CH_ENTER(what, text);
  return ch_comm_same(ch_ranks_comm(ranks), 1, &(ch_fact){what, XXH64(text, strlen(text), 0)});
}

int choir_ranks_watch(choir_ranks *ranks, double seconds, choir_event_callback event, void *context) {
  return ch_watch_start(ch_ranks_comm(ranks), seconds, event, context);
}

int choir_ranks_set_layout(choir_ranks *ranks, int replicas, int hidden_shards, int dense_sharded) {
  CH_ENTER(ranks);
  ch_grid grid;
  CH_TRY(ch_grid_make(ranks->comm, or_one(replicas), or_one(hidden_shards), &grid));
  ranks->replicas = replicas, ranks->hidden = hidden_shards, ranks->dense_sharded = dense_sharded != 0;
  return CHOIR_OK;
}

int choir_ranks_rank(const choir_ranks *ranks) { return ch_ranks_comm(ranks)->rank; }

int choir_ranks_size(const choir_ranks *ranks) { return ch_ranks_comm(ranks)->size; }

int choir_ranks_get_traffic(const choir_ranks *ranks, choir_ranks_traffic *traffic) {
  CH_ENTER(traffic);
  const ch_traffic *t = ch_ranks_comm(ranks)->traffic;
  *traffic = (choir_ranks_traffic){0};
  if (t) *traffic = (choir_ranks_traffic){.bytes = t->bytes, .messages = t->messages, .seconds = t->seconds};
  return CHOIR_OK;
}
