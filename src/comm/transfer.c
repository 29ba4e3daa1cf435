#include "comm/transfer.h"

#include <string.h>

#include "base/machine.h"
#include "comm/watch.h"

static void count_traffic(const ch_comm *comm, const ch_bytes *send) {
  for (int r = 0; r < comm->size; r++) {
    comm->traffic->bytes += send[r].bytes;
    comm->traffic->messages += (send[r].bytes + comm->piece - 1) / comm->piece;
  }
}

void ch_comm_begin(const ch_comm *comm, ch_transfer *t, const char *what, ch_bytes *send, ch_bytes *receive) {
  ch_bytes *from = &send[comm->rank], *to = &receive[comm->rank];
  if (from->bytes && from->at != to->at) memcpy(to->at, from->at, (size_t)from->bytes);
  from->bytes = to->bytes = 0;
  *t = (ch_transfer){.what = what, .send = send, .receive = receive, .place = -1};
  if (comm->size == 1) return;
  double begin = ch_machine_seconds();
  count_traffic(comm, send);
  t->number = ++comm->traffic->exchanges;
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
