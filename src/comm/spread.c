/* Arrays of some ranks to all. Of each every other rank gets a share from its owner, and passes it on to the rest: so
 * nobody sends more than there is. Of more than can be under way at a time, the rest follow when these have ended. */
#include "comm/collective.h"

static int under_way(const ch_spreading *s) { return s->count < CH_AT_ONCE ? s->count : CH_AT_ONCE; }

/* The share of rank r, which is not the owner. */
static ch_bytes share_of(const ch_comm *comm, const ch_spread *a, int r) {
  return ch_share_of(a->data, a->bytes, 1, r - (r > a->owner), comm->size - 1);
}

static void hand_out(const ch_comm *comm, const char *what, const ch_spread *a, ch_transfer *t, ch_bytes *spans) {
  ch_bytes *send = spans, *receive = spans + comm->size;
  for (int r = 0; r < comm->size; r++) {
    send[r] = receive[r] = (ch_bytes){0};
    if (r != a->owner && comm->rank == a->owner) send[r] = share_of(comm, a, r);
  }
  if (comm->rank != a->owner) receive[a->owner] = share_of(comm, a, comm->rank);
  ch_comm_begin(comm, t, what, send, receive);
}

static void pass_on(const ch_comm *comm, const char *what, const ch_spread *a, ch_transfer *t, ch_bytes *spans) {
  ch_bytes *send = spans, *receive = spans + comm->size;
  for (int r = 0; r < comm->size; r++) {
    send[r] = receive[r] = (ch_bytes){0};
    if (r == a->owner || r == comm->rank || comm->rank == a->owner) continue;
    send[r] = share_of(comm, a, comm->rank);
    receive[r] = share_of(comm, a, r);
  }
  ch_comm_begin(comm, t, what, send, receive);
}

static ch_bytes *spans_of(const ch_comm *comm, const ch_spreading *s, int i) {
  return s->spans + i * CH_SPANS * (int64_t)comm->size;
}

enum { READY, HANDED_OUT, PASSED_ON };

void ch_comm_spread_next(const ch_comm *comm, ch_spreading *s) {
  if (comm->size == 1) s->count = 0;
  if (s->steps == PASSED_ON) return;
  for (int i = 0; i < under_way(s); i++) {
    if (s->steps == HANDED_OUT) ch_comm_finish(comm, &s->transfer[i]);
    (s->steps == READY ? hand_out : pass_on)(comm, s->what, &s->some[i], &s->transfer[i], spans_of(comm, s, i));
  }
  s->steps++;
}

void ch_comm_spread_move(const ch_comm *comm, ch_spreading *s) {
  for (int i = 0; i < under_way(s) && s->steps; i++) ch_comm_test(comm, &s->transfer[i]);
}

void ch_comm_spread_end(const ch_comm *comm, ch_spreading *s) {
  while (s->count) {
    while (s->count && s->steps < PASSED_ON) ch_comm_spread_next(comm, s);
    int ended = under_way(s);
    for (int i = 0; i < ended; i++) ch_comm_finish(comm, &s->transfer[i]);
    s->some += ended;
    s->count -= ended;
    s->steps = READY;
  }
}
