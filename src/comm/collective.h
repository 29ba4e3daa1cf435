/* Collective calls, made of exchanges. One process does nothing, or its own part. */
#ifndef CH_COMM_COLLECTIVE_H
#define CH_COMM_COLLECTIVE_H

#include "base/memory.h"
#include "base/real.h"
#include "comm/comm.h"

/* The share of rank r of `count` things in a row: from ch_share(count, r, size) to ch_share(count, r + 1, size). */
static inline int64_t ch_share(int64_t count, int64_t rank, int64_t size) { return count * rank / size; }

/* Numbers first .. last-1: experts, tokens or slots; and a rank's share of `count` of them. */
typedef struct ch_range {
  int first, last;
} ch_range;
static inline ch_range ch_share_range(int64_t count, int64_t rank, int64_t size) {
  return (ch_range){(int)ch_share(count, rank, size), (int)ch_share(count, rank + 1, size)};
}
static inline ch_range ch_local_range(const ch_comm *comm, int64_t count) {
  return ch_share_range(count, comm->rank, comm->size);
}
static inline int64_t ch_largest_share(const ch_comm *comm, int64_t count) {
  return (count + comm->size - 1) / comm->size;
}

/* Rank `rank`'s share of an array of `count` elements, `bytes` bytes each. */
static inline ch_bytes ch_share_of(const void *all, int64_t count, int64_t bytes, int64_t rank, int64_t size) {
  int64_t first = ch_share(count, rank, size), last = ch_share(count, rank + 1, size);
  return (ch_bytes){(char *)(uintptr_t)all + first * bytes, (last - first) * bytes};
}

/* Arrays that one function has under way at a time, at most, and the spans of one, for each rank. */
enum { CH_AT_ONCE = 8, CH_SPANS = 2 };

/* The ranks that receive a result: every `every`-th rank, starting at `first`. */
typedef struct ch_receivers {
  int first, every; /* first < every */
} ch_receivers;
static inline int ch_receives(const ch_receivers *r, int rank) { return rank % r->every == r->first; }

/* All-gather: all [size * bytes] receives every rank's `own` [bytes], which may be in its place already. */
void ch_comm_gather(const ch_comm *comm, const char *what, const void *local, void *all, int64_t bytes);

/* The same into an array of `arena`, which is `own` itself on a single rank; while the arena counts, it only counts the
 * array. */
static inline void CH_DEV *ch_comm_gather_in(ch_arena *arena, const ch_comm *comm, const char *what,
                                             const void CH_DEV *local, int64_t bytes) {
  if (comm->size == 1) return CH_AS_DEV(void, local);
  char CH_DEV *all = CH_NEW(arena, char, (comm->size * bytes));
  if (!ch_arena_counting(arena)) ch_comm_gather(comm, what, CH_HOST_OR_DEVICE(local), CH_HOST_OR_DEVICE(all), bytes);
  return all;
}

/* All-gather of an array of `count` elements, `bytes` bytes each, cut by ch_share: each rank has written its share. */
void ch_comm_gather_shares(const ch_comm *comm, const char *what, void *all, int64_t count, int64_t bytes);

/* All-gather of `count` lists, whose elements, `bytes` bytes each, are one after the other in `all`: list i is elements
 * begin[i] .. begin[i+1]-1. A rank has the lists of its ch_share in `own`. Elements are spread evenly first, so that a
 * rank with most of them does not send these to everyone. */
void ch_comm_gather_lists(const ch_comm *comm, const char *what, const void *local, void *all, int count,
                          const int *begin, int64_t bytes);

/* From rows to columns of a matrix with elements of `bytes` bytes: every rank has `rows` rows [rows,columns] and
 * receives, of all ranks' rows, the columns of its ch_share. packed: as large as own. */
void ch_comm_columns(const ch_comm *comm, const char *what, int64_t rows, int64_t columns, int64_t bytes,
                     const void *local, void *packed, void *received);

/* Begins ch_comm_gather_shares. Only the ranks in `to` receive the array (NULL: every rank). spans: [CH_SPANS, size],
 * in use until the transfer ends. */
void ch_comm_gather_begin(const ch_comm *comm, ch_transfer *t, const char *what, void *all, int64_t count,
                          int64_t bytes, const ch_receivers *to, ch_bytes *spans);

/* Maximum of `value` over ranks. */
int64_t ch_comm_max(const ch_comm *comm, int64_t value);

/* Maximum of `code` over ranks, so that one rank's failure becomes every rank's error before any rank leaves. The
 * message is taken from the lowest failing rank and names the rank. */
int ch_comm_agree(const ch_comm *comm, int code);

/* The first rank makes the call, and its code becomes every rank's. */
#define CH_ON_FIRST(comm, call) ch_comm_agree(comm, (comm)->rank ? CHOIR_OK : (call))

/* Sends `root`'s bytes to every rank. */
void ch_comm_broadcast(const ch_comm *comm, int root, void *data, int64_t bytes);

/* An array to broadcast: every rank gets the owner's values. */
typedef struct ch_broadcast {
  int owner;
  void *data;
  int64_t bytes;
} ch_broadcast;

/* Broadcasts in flight while other work goes on (collective.c explains the two steps). All ranks take each step, and
 * end, at the same places among their exchanges. */
typedef struct ch_broadcasts {
  const char *what;
  const ch_broadcast *left; /* [count] that have not ended */
  int count;
  int steps;       /* steps taken, 0 at first */
  ch_bytes *spans; /* [count, CH_SPANS, size], of CH_AT_ONCE at most */
  ch_transfer transfer[CH_AT_ONCE];
} ch_broadcasts;
void ch_comm_broadcast_next(const ch_comm *comm,
                            ch_broadcasts *s); /* ends the previous step, begins the next, if any */
void ch_comm_broadcast_move(const ch_comm *comm, ch_broadcasts *s); /* makes progress; call it often */
void ch_comm_broadcast_end(const ch_comm *comm, ch_broadcasts *s);  /* completes every broadcast; sets count to 0 */

/* A number that must be equal on all ranks (often a hash), and its name for messages: "config". */
typedef struct ch_fact {
  const char *name;
  uint64_t value;
} ch_fact;
enum { CH_FACTS = 16 }; /* at most */

/* CHOIR_ERROR_ARGUMENT on every rank if a fact [count] differs between ranks, with the fact's name. CH_SAME takes an
 * array of facts; more than CH_FACTS do not compile. */
int ch_comm_same(const ch_comm *comm, int count, const ch_fact *fact);
#define CH_SAME(comm, facts)                                                                                           \
  ch_comm_same(                                                                                                        \
      comm,                                                                                                            \
      (int)(sizeof(facts) / sizeof *(facts) + 0 * sizeof(char[sizeof(facts) / sizeof *(facts) <= CH_FACTS ? 1 : -1])), \
      facts)

/* Sums over shards in a fixed binary tree (op/grad_chunks.h): sum(lo, hi) = sum(lo, mid) + sum(mid, hi), mid = (lo +
 * hi) / 2. Every rank has equally many consecutive shards. A rank's pieces are the largest tree nodes whose shards are
 * all its own, in order. */
enum { CH_SUM_PIECES = 64 }; /* of one rank, at most */
typedef struct ch_piece {
  int lo, hi;
} ch_piece;
int ch_comm_pieces(int grad_chunks, int rank, int size, ch_piece *pieces);

/* Elements that a rank adds at a time, of every piece. */
enum { CH_SUM_SLICE = 1 << 16 };

/* An array of `count` elements to sum: piece[i] has the sum over this rank's i-th piece. `most`: the largest count in
 * any group that sums at the same time, so that all groups make equally many exchanges. Only the ranks in `to` get the
 * sum (NULL: every rank). */
typedef struct ch_comm_array {
  real *const *piece;
  int64_t count, max;
  const ch_receivers *to;
} ch_comm_array;

typedef struct ch_sum_buffers {
  real *piece;     /* slices of the pieces of all ranks */
  ch_bytes *spans; /* [arrays, CH_SPANS, size] */
} ch_sum_buffers;
ch_sum_buffers ch_comm_sum_buffers(const ch_comm *comm, int grad_chunks, int arrays, ch_arena *arena);

/* Reduce-scatter, then all-gather, of at most CH_AT_ONCE arrays: piece[0] becomes the sum over all shards on the
 * receiving ranks and is overwritten on the others. The arrays are reduced one after the other and gathered together.
 */
void ch_comm_sum(const ch_comm *comm, const char *what, int grad_chunks, const ch_comm_array *array, int arrays,
                 const ch_sum_buffers *buffers);

/* The same with room from `arena`, which goes back; while the arena counts, it only counts the room. */
static inline void ch_comm_sum_in(ch_arena *arena, const ch_comm *comm, const char *what, int grad_chunks,
                                  const ch_comm_array *array, int arrays) {
  size_t mark = ch_arena_mark(arena);
  const ch_sum_buffers buffers = ch_comm_sum_buffers(comm, grad_chunks, arrays, arena);
  if (!ch_arena_counting(arena)) ch_comm_sum(comm, what, grad_chunks, array, arrays, &buffers);
  ch_arena_release(arena, mark);
}

/* Sums one number per shard in the same fixed order. */
double ch_add_grad_chunks(int grad_chunks, const double *shard);

#endif
