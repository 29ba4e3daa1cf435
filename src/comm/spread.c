/* Arrays of some ranks to all, at once. Of each every other rank gets a share from its owner, and passes it on to the
 * rest: so nobody sends more than there is. They go in parts, that of one is passed on while the next is handed out:
 * while an owner still sends its own, the others' links are not idle. */
#include "comm/collective.h"

enum { PARTS = 4 }; /* at most */

/* The share of rank r, which is not the owner, of part number `part` of all shares. */
static ch_bytes share_of(const ch_comm *comm, const ch_spread *s, int r, int part, int parts) {
  ch_bytes share = ch_share_of(s->data, s->bytes, 1, r - (r > s->owner), comm->size - 1);
  return ch_share_of(share.at, share.bytes, 1, part, parts);
}

static void hand_out(const ch_comm *comm, const char *what, const ch_spread *s, int part, int parts, ch_transfer *t,
                     ch_bytes *spans) {
  ch_bytes *send = spans, *receive = spans + comm->size;
  for (int r = 0; r < comm->size; r++) {
    send[r] = receive[r] = (ch_bytes){0};
    if (r != s->owner && comm->rank == s->owner) send[r] = share_of(comm, s, r, part, parts);
  }
  if (comm->rank != s->owner) receive[s->owner] = share_of(comm, s, comm->rank, part, parts);
  ch_comm_begin(comm, t, what, send, receive);
}

static void pass_on(const ch_comm *comm, const char *what, const ch_spread *s, int part, int parts, ch_transfer *t,
                    ch_bytes *spans) {
  ch_bytes *send = spans, *receive = spans + comm->size;
  for (int r = 0; r < comm->size; r++) {
    send[r] = receive[r] = (ch_bytes){0};
    if (r == s->owner || r == comm->rank || comm->rank == s->owner) continue;
    send[r] = share_of(comm, s, comm->rank, part, parts);
    receive[r] = share_of(comm, s, r, part, parts);
  }
  ch_comm_begin(comm, t, what, send, receive);
}

int ch_comm_spread_parts(const ch_comm *comm, int64_t bytes) {
  int64_t parts = bytes / (comm->size * comm->worth);
  return parts < 1 ? 1 : parts < PARTS ? (int)parts : PARTS;
}

/* CH_AT_ONCE at most. */
static void spread_few(const ch_comm *comm, const char *what, const ch_spread *some, int count, ch_bytes *spans) {
  ch_transfer out[CH_AT_ONCE], on[CH_AT_ONCE];
  int64_t most = 0, room = CH_SPANS * (int64_t)comm->size;
  for (int i = 0; i < count; i++) most = some[i].bytes > most ? some[i].bytes : most;
  int parts = ch_comm_spread_parts(comm, most);
  for (int part = 0; part <= parts; part++) {
    for (int i = 0; i < count && part < parts; i++)
      hand_out(comm, what, &some[i], part, parts, &out[i], spans + 2 * i * room);
    for (int i = 0; i < count && part > 0; i++)
      pass_on(comm, what, &some[i], part - 1, parts, &on[i], spans + (2 * i + 1) * room);
    for (int i = 0; i < count && part < parts; i++) ch_comm_finish(comm, &out[i]);
    for (int i = 0; i < count && part > 0; i++) ch_comm_finish(comm, &on[i]);
  }
}

void ch_comm_spread(const ch_comm *comm, const char *what, const ch_spread *some, int count, ch_bytes *spans) {
  for (int i = 0; i < count && comm->size > 1; i += CH_AT_ONCE)
    spread_few(comm, what, some + i, count - i < CH_AT_ONCE ? count - i : CH_AT_ONCE, spans);
}
