#include "train/ranks.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "comm/collective.h"

/* Each has looked for the newest checkpoint that it can read; who has passed one over says why. */
static int same_step(const ch_run *run) {
  const ch_comm *comm = run->trainer.model->x.comm;
  int64_t own = run->trainer.step, first = own;
  int code = CHOIR_OK;
  ch_comm_broadcast(comm, 0, &first, sizeof first);
  if (own != first) {
    const char *note = choir_notices();
    code = ch_error(CHOIR_ERROR_ARGUMENT,
                    "goes on from step %" PRId64 ", and rank 0 from step %" PRId64
                    ": all must see the same checkpoints in %s%s%.*s",
                    own, first, run->out, *note ? "; " : "", (int)strcspn(note, "\n"), note);
  }
  return ch_comm_agree(comm, code);
}

int ch_run_same(const ch_run *run) {
  static const char *const name[] = {"data"};
  const uint64_t fact[] = {ch_data_hash(run->data)};
  CH_TRY(same_step(run));
  CH_TRY(ch_comm_same(run->trainer.model->x.comm, 1, name, fact));
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
