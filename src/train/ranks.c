#include "train/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/machine.h"
#include "choir/version.h"
#include "comm/collective.h"
#include "model/config.h"

enum { VERSION, CONFIG, COMPUTE, DATA, ISA, STEP, FACTS };
static const char *const facts[FACTS] = {"version of choir", "config",    "compute type", "data",
                                         "instruction set",  "checkpoint"};

static uint64_t hash_of(const char *text) { return text ? XXH64(text, strlen(text), 0) : 0; }

static void collect(const ch_run *run, uint64_t *fact) {
  json_t *config = ch_config_json(&run->config);
  char *text = config ? json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
  fact[VERSION] = hash_of(choir_version());
  fact[CONFIG] = hash_of(text);
  fact[COMPUTE] = (uint64_t)run->trainer.model->x.compute;
  fact[DATA] = ch_data_hash(run->data);
  fact[ISA] = (uint64_t)ch_machine_isa();
  fact[STEP] = (uint64_t)run->trainer.step;
  free(text);
  json_decref(config);
}

int ch_run_same(const ch_run *run) {
  const ch_comm *comm = run->trainer.model->x.comm;
  uint64_t all[CH_RANKS][FACTS];
  if (comm->size == 1) return CHOIR_OK;
  collect(run, all[comm->rank]);
  ch_comm_gather(comm, all, sizeof *all);
  for (int r = 1; r < comm->size; r++)
    for (int i = 0; i < FACTS; i++)
      if (all[r][i] != all[0][i])
        return ch_error(CHOIR_ERROR_ARGUMENT,
                        "rank %d of %d has another %s than rank 0: all must be the same, for the same results", r,
                        comm->size, facts[i]);
  return CHOIR_OK;
}

ch_rank_times ch_rank_times_since(const ch_comm *comm, ch_traffic *before) {
  double waited[CH_RANKS];
  if (comm->size == 1) return (ch_rank_times){.ranks = 1};
  const ch_traffic now = *comm->traffic;
  ch_rank_times t = {
      .ranks = comm->size, .bytes = now.bytes - before->bytes, .messages = now.messages - before->messages};
  waited[comm->rank] = t.waited = now.seconds - before->seconds;
  ch_comm_gather(comm, waited, sizeof *waited);
  for (int r = 1; r < comm->size; r++)
    if (waited[r] < waited[t.slowest]) t.slowest = r;
  t.least = waited[t.slowest];
  *before = *comm->traffic;
  return t;
}
