#include "comm/collective.h"

#include <string.h>

#include "base/error.h"

void ch_comm_gather_begin(const ch_comm *comm, ch_transfer *t, const char *what, void *all, int64_t count,
                          int64_t bytes, const ch_receivers *to, ch_bytes *spans) {
  ch_bytes *send = spans, *receive = spans + comm->size;
  for (int r = 0; r < comm->size; r++) receive[r] = ch_share_of(all, count, bytes, r, comm->size);
  const ch_bytes local = receive[comm->rank];
  for (int r = 0; r < comm->size; r++) {
    send[r] = !to || ch_receives(to, r) ? local : (ch_bytes){0};
    if (to && !ch_receives(to, comm->rank)) receive[r] = (ch_bytes){0};
  }
  ch_comm_begin(comm, t, what, send, receive);
}

void ch_comm_gather_shares(const ch_comm *comm, const char *what, void *all, int64_t count, int64_t bytes) {
  ch_transfer t;
  ch_bytes spans[CH_SPANS * CH_RANKS];
  if (comm->size == 1) return;
  ch_comm_gather_begin(comm, &t, what, all, count, bytes, NULL, spans);
  ch_comm_finish(comm, &t);
}

void ch_comm_gather(const ch_comm *comm, const char *what, const void *local, void *all, int64_t bytes) {
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  for (int r = 0; r < comm->size; r++) {
    send[r] = (ch_bytes){CH_HOST_OR_DEVICE(local), bytes};
    receive[r] = (ch_bytes){(char *)all + r * bytes, bytes};
  }
  ch_comm_exchange(comm, what, send, receive);
}

/* Bytes of the overlap of two ranges, in an array that begins with element `from`. */
static ch_bytes overlap(ch_range a, ch_range b, const void *array, int64_t from, int64_t bytes) {
  int64_t first = a.first > b.first ? a.first : b.first, last = a.last < b.last ? a.last : b.last;
  if (last < first) last = first;
  return (ch_bytes){(char *)(uintptr_t)array + (first - from) * bytes, (last - first) * bytes};
}

/* Range of the elements of a rank's lists. */
static ch_range elements_of(const ch_comm *comm, int rank, int count, const int *begin) {
  const ch_range lists = ch_share_range(count, rank, comm->size);
  return (ch_range){begin[lists.first], begin[lists.last]};
}

void ch_comm_gather_lists(const ch_comm *comm, const char *what, const void *local, void *all, int count,
                          const int *begin, int64_t bytes) {
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  const ch_range mine = elements_of(comm, comm->rank, count, begin), even = ch_local_range(comm, begin[count]);
  for (int r = 0; r < comm->size; r++) {
    send[r] = overlap(mine, ch_share_range(begin[count], r, comm->size), local, mine.first, bytes);
    receive[r] = overlap(even, elements_of(comm, r, count, begin), all, 0, bytes);
  }
  ch_comm_exchange(comm, what, send, receive);
  ch_comm_gather_shares(comm, what, all, begin[count], bytes);
}

void ch_comm_columns(const ch_comm *comm, const char *what, int64_t rows, int64_t columns, int64_t bytes,
                     const void *local, void *packed, void *received) {
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  const ch_range mine = ch_local_range(comm, columns);
  const int64_t part = rows * (mine.last - mine.first) * bytes;
  char *to = packed;
  for (int r = 0; r < comm->size; r++) {
    const ch_range theirs = ch_share_range(columns, r, comm->size);
    const int64_t width = (theirs.last - theirs.first) * bytes;
    send[r] = (ch_bytes){to, rows * width};
    receive[r] = (ch_bytes){(char *)received + r * part, part};
    for (int64_t i = 0; i < rows; i++, to += width)
      memcpy(to, (const char *)local + (i * columns + theirs.first) * bytes, (size_t)width);
  }
  ch_comm_exchange(comm, what, send, receive);
}

int64_t ch_comm_max(const ch_comm *comm, int64_t value) {
  int64_t all[CH_RANKS];
  ch_comm_gather(comm, "maximum", &value, all, sizeof value);
  for (int r = 0; r < comm->size; r++)
    if (all[r] > value) value = all[r];
  return value;
}

void ch_comm_broadcast(const ch_comm *comm, int root, void *data, int64_t bytes) {
  ch_bytes send[CH_RANKS] = {{0}}, receive[CH_RANKS] = {{0}};
  for (int r = 0; r < comm->size && comm->rank == root; r++) send[r] = (ch_bytes){data, bytes};
  receive[root] = (ch_bytes){data, bytes};
  ch_comm_exchange(comm, "what one rank says", send, receive);
}

int ch_comm_agree(const ch_comm *comm, int code) {
  int64_t local = code, all[CH_RANKS];
  char text[1024];
  int worst = 0;
  if (comm->size == 1) return code;
  ch_comm_gather(comm, "agreement", &local, all, sizeof local);
  for (int r = 1; r < comm->size; r++)
    if (all[r] > all[worst]) worst = r;
  if (!all[worst]) return CHOIR_OK;
  memset(text, 0, sizeof text);
  strncpy(text, choir_error_message(), sizeof text - 1);
  ch_comm_broadcast(comm, worst, text, sizeof text);
  if (!worst) return ch_error((int)all[worst], "%s", text);
  return ch_error((int)all[worst], "rank %d of %d: %s", worst, comm->size, text);
}

int ch_comm_same(const ch_comm *comm, int count, const ch_fact *fact) {
  uint64_t all[CH_RANKS];
  for (int i = 0; i < count; i++) {
    ch_comm_gather(comm, "what must be the same", &fact[i].value, all, sizeof *all);
    for (int r = 1; r < comm->size; r++)
      if (all[r] != all[0])
        return ch_error(CHOIR_ERROR_ARGUMENT,
                        "rank %d of %d has another %s than rank 0: all must be the same, for the same results", r,
                        comm->size, fact[i].name);
  }
  return CHOIR_OK;
}

/* ---- broadcasts ----
 * Each array is sent from its owner to all ranks in two steps: the owner scatters one share to every other rank, and
 * these ranks then exchange their shares. So no rank sends more than the whole array. At most CH_AT_ONCE arrays are in
 * flight; the next ones start when these have ended. */

static int under_way(const ch_broadcasts *s) { return s->count < CH_AT_ONCE ? s->count : CH_AT_ONCE; }

/* The share of rank r, r != owner. */
static ch_bytes share_of(const ch_comm *comm, const ch_broadcast *a, int r) {
  return ch_share_of(a->data, a->bytes, 1, r - (r > a->owner), comm->size - 1);
}

/* Begins the first step (the owner scatters) or, with `passing`, the second step (the other ranks exchange). */
static void set_out(const ch_comm *comm, const char *what, const ch_broadcast *a, int passing, ch_transfer *t,
                    ch_bytes *spans) {
  ch_bytes *send = spans, *receive = spans + comm->size;
  const int owns = comm->rank == a->owner;
  for (int r = 0; r < comm->size; r++) {
    send[r] = receive[r] = (ch_bytes){0};
    if (r == a->owner || r == comm->rank || owns == passing) continue;
    send[r] = share_of(comm, a, passing ? comm->rank : r);
    if (passing) receive[r] = share_of(comm, a, r);
  }
  if (!passing && !owns) receive[a->owner] = share_of(comm, a, comm->rank);
  ch_comm_begin(comm, t, what, send, receive);
}

static ch_bytes *spans_of(const ch_comm *comm, const ch_broadcasts *s, int i) {
  return s->spans + i * CH_SPANS * (int64_t)comm->size;
}

enum { READY, HANDED_OUT, PASSED_ON };

void ch_comm_broadcast_next(const ch_comm *comm, ch_broadcasts *s) {
  if (comm->size == 1) s->count = 0;
  if (s->steps == PASSED_ON) return;
  for (int i = 0; i < under_way(s); i++) {
    if (s->steps == HANDED_OUT) ch_comm_finish(comm, &s->transfer[i]);
    set_out(comm, s->what, &s->left[i], s->steps == HANDED_OUT, &s->transfer[i], spans_of(comm, s, i));
  }
  s->steps++;
}

void ch_comm_broadcast_move(const ch_comm *comm, ch_broadcasts *s) {
  for (int i = 0; i < under_way(s) && s->steps; i++) ch_comm_test(comm, &s->transfer[i]);
}

void ch_comm_broadcast_end(const ch_comm *comm, ch_broadcasts *s) {
  while (s->count) {
    while (s->count && s->steps < PASSED_ON) ch_comm_broadcast_next(comm, s);
    int ended = under_way(s);
    for (int i = 0; i < ended; i++) ch_comm_finish(comm, &s->transfer[i]);
    s->left += ended;
    s->count -= ended;
    s->steps = READY;
  }
}
