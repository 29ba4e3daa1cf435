#include "train/ranks.h"

#include "comm/collective.h"

int ch_run_same(const ch_run *run) {
  static const char *const name[] = {"data", "checkpoint"};
  const uint64_t fact[] = {ch_data_hash(run->data), (uint64_t)run->trainer.step};
  CH_TRY(ch_comm_same(run->trainer.model->x.comm, 2, name, fact));
  return ch_model_same(run->trainer.model);
}

ch_traffic ch_traffic_of(const ch_comm *comm) { return comm->traffic ? *comm->traffic : (ch_traffic){0}; }

ch_rank_times ch_rank_times_since(const ch_comm *comm, const ch_traffic *before) {
  double waited[CH_RANKS];
  if (comm->size == 1) return (ch_rank_times){.ranks = 1};
  const ch_traffic now = *comm->traffic;
  ch_rank_times t = {
      .ranks = comm->size, .bytes = now.bytes - before->bytes, .messages = now.messages - before->messages};
  waited[comm->rank] = t.waited = now.seconds - before->seconds;
  ch_comm_gather(comm, "seconds waited", waited, sizeof *waited);
  for (int r = 1; r < comm->size; r++)
    if (waited[r] < waited[t.slowest]) t.slowest = r;
  t.least = waited[t.slowest];
  return t;
}
