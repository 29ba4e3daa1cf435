#include "comm/collective.h"

#include <string.h>

#include "base/error.h"

static const ch_receivers everybody = {.every = 1};

/* Every rank brings all[begin of its own .. end]. */
static void gather_to(const ch_comm *comm, const char *what, void *all, int64_t count, int64_t bytes,
                      const ch_receivers *to) {
  ch_bytes share[CH_RANKS], send[CH_RANKS] = {{0}}, receive[CH_RANKS] = {{0}};
  if (comm->size == 1) return;
  for (int r = 0; r < comm->size; r++) {
    int64_t first = ch_share(count, r, comm->size), last = ch_share(count, r + 1, comm->size);
    share[r] = (ch_bytes){(char *)all + first * bytes, (last - first) * bytes};
  }
  for (int r = 0; r < comm->size; r++) {
    if (ch_receives(to, r)) send[r] = share[comm->rank];
    if (ch_receives(to, comm->rank)) receive[r] = share[r];
  }
  ch_comm_exchange(comm, what, send, receive);
}

void ch_comm_gather_shares(const ch_comm *comm, const char *what, void *all, int64_t count, int64_t bytes) {
  gather_to(comm, what, all, count, bytes, &everybody);
}

void ch_comm_gather(const ch_comm *comm, const char *what, void *all, int64_t bytes) {
  ch_comm_gather_shares(comm, what, all, comm->size, bytes);
}

int64_t ch_comm_max(const ch_comm *comm, int64_t value) {
  int64_t all[CH_RANKS];
  all[comm->rank] = value;
  ch_comm_gather(comm, "maximum", all, sizeof *all);
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

void ch_comm_spread(const ch_comm *comm, const char *what, int root, void *data, int64_t count, int64_t bytes) {
  ch_bytes send[CH_RANKS] = {{0}}, receive[CH_RANKS] = {{0}};
  if (comm->size == 1) return;
  for (int r = 0; r < comm->size; r++) {
    int64_t first = ch_share(count, r, comm->size), last = ch_share(count, r + 1, comm->size);
    const ch_bytes share = {(char *)data + first * bytes, (last - first) * bytes};
    if (comm->rank == root) send[r] = share;
    if (comm->rank == r) receive[root] = share;
  }
  ch_comm_exchange(comm, what, send, receive);
  ch_comm_gather_shares(comm, what, data, count, bytes);
}

int ch_comm_agree(const ch_comm *comm, int code) {
  int64_t all[CH_RANKS];
  char text[1024];
  int worst = 0;
  if (comm->size == 1) return code;
  all[comm->rank] = code;
  ch_comm_gather(comm, "agreement", all, sizeof *all);
  for (int r = 1; r < comm->size; r++)
    if (all[r] > all[worst]) worst = r;
  if (!all[worst]) return CHOIR_OK;
  memset(text, 0, sizeof text);
  strncpy(text, choir_error_message(), sizeof text - 1);
  ch_comm_broadcast(comm, worst, text, sizeof text);
  if (!worst) return ch_error((int)all[worst], "%s", text);
  return ch_error((int)all[worst], "rank %d of %d: %s", worst, comm->size, text);
}

int ch_comm_same(const ch_comm *comm, int count, const char *const *name, const uint64_t *fact) {
  uint64_t all[CH_RANKS][CH_FACTS] = {{0}};
  if (comm->size == 1) return CHOIR_OK;
  memcpy(all[comm->rank], fact, (size_t)count * sizeof *fact);
  ch_comm_gather(comm, "what must be the same", all, sizeof *all);
  for (int r = 1; r < comm->size; r++)
    for (int i = 0; i < count; i++)
      if (all[r][i] != all[0][i])
        return ch_error(CHOIR_ERROR_ARGUMENT,
                        "rank %d of %d has another %s than rank 0: all must be the same, for the same results", r,
                        comm->size, name[i]);
  return CHOIR_OK;
}

/* ---- sums over shards ---- */

/* Whether all shards of a node are one rank's, which each have `own`. */
static int is_piece(int lo, int hi, int own) { return lo / own == (hi - 1) / own; }

static void cover(int lo, int hi, int rank, int own, ch_piece *pieces, int *count) {
  if (hi <= rank * own || lo >= (rank + 1) * own) return;
  if (is_piece(lo, hi, own)) {
    pieces[(*count)++] = (ch_piece){lo, hi};
    return;
  }
  int mid = (lo + hi) / 2;
  cover(lo, mid, rank, own, pieces, count);
  cover(mid, hi, rank, own, pieces, count);
}

int ch_comm_pieces(int shards, int rank, int size, ch_piece *pieces) {
  int count = 0;
  cover(0, shards, rank, shards / size, pieces, &count);
  return count;
}

enum { AT_ONCE = 1 << 16 }; /* elements of every piece that a rank adds at a time */

static int all_pieces(const ch_comm *comm, int shards, int *of) {
  ch_piece pieces[CH_SUM_PIECES];
  int total = 0;
  for (int r = 0; r < comm->size; r++) total += of[r] = ch_comm_pieces(shards, r, comm->size, pieces);
  return total;
}

int64_t ch_comm_sum_room(const ch_comm *comm, int shards) {
  int of[CH_RANKS];
  return comm->size == 1 ? 0 : (int64_t)all_pieces(comm, shards, of) * AT_ONCE;
}

/* This rank's share of `count` elements from `from` on, of the pieces of all ranks, into `room` one behind the other.
 * Piece number i of all ranks travels at once. */
static void collect(const ch_comm *comm, const char *what, const int *of, real *const *piece, int64_t from,
                    int64_t count, real *room) {
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  int64_t own = ch_share(count, comm->rank + 1, comm->size) - ch_share(count, comm->rank, comm->size);
  for (int i = 0, more = 1; more; i++) {
    int64_t before = 0; /* pieces of lower ranks */
    more = 0;
    for (int r = 0; r < comm->size; before += of[r++]) {
      int64_t first = ch_share(count, r, comm->size), last = ch_share(count, r + 1, comm->size);
      send[r] = receive[r] = (ch_bytes){0};
      if (i < of[comm->rank]) send[r] = (ch_bytes){piece[i] + from + first, (last - first) * (int64_t)sizeof(real)};
      if (i < of[r]) receive[r] = (ch_bytes){room + (before + i) * AT_ONCE, own * (int64_t)sizeof(real)};
      more |= i + 1 < of[r];
    }
    ch_comm_exchange(comm, what, send, receive);
  }
}

/* The sum of a node of `count` elements, in place of the first piece of it; *next: of what stands behind it. */
static real *add_node(int lo, int hi, int own, real **next, int64_t count) {
  int mid = (lo + hi) / 2;
  if (is_piece(lo, hi, own)) {
    *next += AT_ONCE;
    return *next - AT_ONCE;
  }
  real *left = add_node(lo, mid, own, next, count);
  const real *right = add_node(mid, hi, own, next, count);
  for (int64_t i = 0; i < count; i++) left[i] += right[i];
  return left;
}

void ch_comm_sum(const ch_comm *comm, const char *what, int shards, real *const *piece, int64_t count, int64_t most,
                 const ch_receivers *to, real *room) {
  int of[CH_RANKS];
  const int64_t slice = (int64_t)AT_ONCE * comm->size;
  if (comm->size == 1) return; /* the whole tree is one piece */
  all_pieces(comm, shards, of);
  for (int64_t from = 0; from < most; from += slice) {
    const int64_t left = count > from ? count - from : 0, some = left < slice ? left : slice;
    int64_t first = ch_share(some, comm->rank, comm->size), last = ch_share(some, comm->rank + 1, comm->size);
    collect(comm, what, of, piece, from, some, room);
    real *next = room;
    const real *sum = add_node(0, shards, shards / comm->size, &next, last - first);
    memcpy(piece[0] + from + first, sum, (size_t)(last - first) * sizeof(real));
    gather_to(comm, what, piece[0] + from, some, sizeof(real), to ? to : &everybody);
  }
}

static double add_numbers(const double *shard, int lo, int hi) {
  int mid = (lo + hi) / 2;
  return hi - lo == 1 ? shard[lo] : add_numbers(shard, lo, mid) + add_numbers(shard, mid, hi);
}

double ch_add_shards(int shards, const double *shard) { return add_numbers(shard, 0, shards); }
