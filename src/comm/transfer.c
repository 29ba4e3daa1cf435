#include "base/machine.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "comm/watch.h"

static void count_traffic(const ch_comm *comm, const ch_bytes *send) {
  for (int r = 0; r < comm->size; r++) {
    comm->traffic->bytes += send[r].bytes;
    comm->traffic->messages += (send[r].bytes + comm->piece - 1) / comm->piece;
  }
}

/* Device spans that transfers in flight will fill. */
static struct {
  int in_use;
  ch_bytes span[CH_RANKS];
} arriving[CH_TRANSFERS];

/* Replaces device spans by staging spans in host memory, and downloads the bytes to send. */
static void stage(const ch_comm *comm, ch_transfer *t) {
  const ch_memory *memory;
  ch_bytes last = {0}; /* bytes sent to all ranks are downloaded once */
  int place = 0;
  while (arriving[place].in_use) place++; /* at most CH_TRANSFERS are in flight */
  ch_bytes *span = arriving[place].span;
  for (int r = 0; r < comm->size; r++) {
    ch_bytes *from = &t->send[r], *to = &t->receive[r];
    void *sent = from->bytes ? ch_stage_twin(from->at, &memory) : NULL;
    if (sent && (from->at != last.at || from->bytes != last.bytes))
      memory->download(sent, CH_AS_DEV(const void, from->at), (size_t)from->bytes);
    if (sent) last = *from, from->at = sent;
    void *came = to->bytes ? ch_stage_twin(to->at, &memory) : NULL;
    span[r] = came ? *to : (ch_bytes){0};
    if (came) to->at = came, t->staged = place;
  }
  if (t->staged >= 0) arriving[place].in_use = 1;
}

/* Copies received bytes from the staging area to the device. */
static void deliver(const ch_comm *comm, ch_transfer *t) {
  for (int r = 0; r < comm->size && t->staged >= 0; r++) {
    const ch_bytes *to = &arriving[t->staged].span[r];
    const ch_memory *memory;
    const void *came = to->bytes ? ch_stage_twin(to->at, &memory) : NULL;
    if (came) memory->upload(CH_AS_DEV(void, to->at), came, (size_t)to->bytes);
  }
  if (t->staged >= 0) arriving[t->staged].in_use = 0;
  t->staged = -1;
}

void ch_comm_begin(const ch_comm *comm, ch_transfer *t, const char *what, ch_bytes *send, ch_bytes *receive) {
  ch_bytes *from = &send[comm->rank], *to = &receive[comm->rank];
  if (from->bytes && from->at != to->at) ch_stage_copy(to->at, from->at, (size_t)from->bytes);
  from->bytes = to->bytes = 0;
  *t = (ch_transfer){.what = what, .send = send, .receive = receive, .place = -1, .staged = -1};
  if (comm->size == 1) return;
  double begin = ch_machine_seconds();
  count_traffic(comm, send);
  t->number = ++comm->traffic->exchanges;
  if (ch_stage_is_used()) stage(comm, t);
  comm->begin(comm, t);
  comm->traffic->seconds += ch_machine_seconds() - begin;
}

int ch_comm_test(const ch_comm *comm, ch_transfer *t) {
  if (t->place < 0) return 1;
  double begin = ch_machine_seconds();
  int done = comm->test(comm, t);
  comm->traffic->seconds += ch_machine_seconds() - begin;
  return done;
}

static void wait_for(const ch_comm *comm, ch_transfer *t, ch_transfer_state until) {
  if (t->place < 0) return;
  double begin = ch_machine_seconds();
  ch_watch_enter(comm, t, until);
  comm->wait(comm, t, until);
  ch_watch_leave(comm);
  deliver(comm, t);
  comm->traffic->seconds += ch_machine_seconds() - begin;
}

void ch_comm_arrive(const ch_comm *comm, ch_transfer *t) { wait_for(comm, t, CH_ARRIVED); }

void ch_comm_finish(const ch_comm *comm, ch_transfer *t) {
  wait_for(comm, t, CH_ENDED);
  t->place = -1;
}

void ch_comm_exchange(const ch_comm *comm, const char *what, ch_bytes *send, ch_bytes *receive) {
  ch_transfer t;
  ch_comm_begin(comm, &t, what, send, receive);
  ch_comm_finish(comm, &t);
}
