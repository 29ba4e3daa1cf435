/* Collective calls, implemented by exchanges. A single process exchanges nothing. */
#ifndef CH_COMM_COLLECTIVE_H
#define CH_COMM_COLLECTIVE_H

#include "base/memory.h"
#include "base/real.h"
#include "comm/comm.h"

/* Start of rank r's share of `count` items: the share is ch_share(count, r, size) .. ch_share(count, r + 1, size) -
 * 1. */
static inline int64_t ch_share(int64_t count, int64_t rank, int64_t size) { return count * rank / size; }

/* Indices first .. last-1 of experts, tokens or slots; and a rank's share of `count` items. */
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

/* Max arrays in flight per function; spans per array and rank. */
enum { CH_AT_ONCE = 8, CH_SPANS = 2 };

/* The ranks that receive a result: every `every`-th rank, starting at `first`. */
typedef struct ch_receivers {
  int first, every; /* first < every */
} ch_receivers;
static inline int ch_receives(const ch_receivers *r, int rank) { return rank % r->every == r->first; }

/* All-gather: all [size * bytes] receives every rank's `local` [bytes], which may already be in its place in `all`. */
void ch_comm_gather(const ch_comm *comm, const char *what, const void *local, void *all, int64_t bytes);

/* All-gather into an array from `arena`; on a single rank returns `local` itself. A counting arena only counts the
 * array. */
static inline void CH_DEV *ch_comm_gather_in(ch_arena *arena, const ch_comm *comm, const char *what,
                                             const void CH_DEV *local, int64_t bytes) {
  if (comm->size == 1) return CH_AS_DEV(void, local);
  char CH_DEV *all = CH_NEW(arena, char, (comm->size * bytes));
  if (!ch_arena_counting(arena)) ch_comm_gather(comm, what, CH_HOST_OR_DEVICE(local), CH_HOST_OR_DEVICE(all), bytes);
  return all;
}

/* All-gather in place of an array of `count` elements of `bytes` bytes, split by ch_share: each rank has written its
 * share. */
void ch_comm_gather_shares(const ch_comm *comm, const char *what, void *all, int64_t count, int64_t bytes);

/* All-gather of `count` lists with elements of `bytes` bytes, consecutive in `all`: list i is elements begin[i] ..
 * begin[i+1]-1. `local` holds the lists of the rank's ch_share. Elements are first redistributed evenly, so that a rank
 * with many elements does not send all of them to every rank. */
void ch_comm_gather_lists(const ch_comm *comm, const char *what, const void *local, void *all, int count,
                          const int *begin, int64_t bytes);

/* All-to-all from row shards to column shards of a matrix with elements of `bytes` bytes: every rank has `local`
 * [rows,columns] and receives the columns of its ch_share from all ranks' rows. packed: scratch of local's size. */
void ch_comm_columns(const ch_comm *comm, const char *what, int64_t rows, int64_t columns, int64_t bytes,
                     const void *local, void *packed, void *received);

/* Begins ch_comm_gather_shares. Only the ranks in `to` receive the array (NULL: every rank). spans: [CH_SPANS, size],
 * in use until the transfer ends. */
void ch_comm_gather_begin(const ch_comm *comm, ch_transfer *t, const char *what, void *all, int64_t count,
                          int64_t bytes, const ch_receivers *to, ch_bytes *spans);

/* Maximum of `value` over ranks. */
int64_t ch_comm_max(const ch_comm *comm, int64_t value);

/* Maximum of `code` over ranks: an error on any rank is returned on all ranks before any rank leaves. The message is
 * taken from the lowest failing rank and names the rank. */
int ch_comm_agree(const ch_comm *comm, int code);

/* Only the first rank makes the call; every rank returns its code. */
#define CH_ON_FIRST(comm, call) ch_comm_agree(comm, (comm)->rank ? CHOIR_OK : (call))

/* Sends `root`'s bytes to every rank. */
void ch_comm_broadcast(const ch_comm *comm, int root, void *data, int64_t bytes);

/* An array to broadcast: every rank gets the owner's values. */
typedef struct ch_broadcast {
  int owner;
  void *data;
  int64_t bytes;
} ch_broadcast;

/* Asynchronous broadcasts (collective.c explains the two steps). All ranks take each step, and end, at the same
 * position in their order of exchanges. */
typedef struct ch_broadcasts {
  const char *what;
  const ch_broadcast *left; /* [count] broadcasts that have not ended */
  int count;
  int steps;       /* steps taken; initially 0 */
  ch_bytes *spans; /* [min(count, CH_AT_ONCE), CH_SPANS, size] */
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
 * array of at most CH_FACTS facts (checked at compile time). */
int ch_comm_same(const ch_comm *comm, int count, const ch_fact *fact);
#define CH_SAME(comm, facts)                                                                                           \
  ch_comm_same(                                                                                                        \
      comm,                                                                                                            \
      (int)(sizeof(facts) / sizeof *(facts) + 0 * sizeof(char[sizeof(facts) / sizeof *(facts) <= CH_FACTS ? 1 : -1])), \
      facts)

/* Sums over gradient chunks in a fixed binary tree (op/grad_chunks.h): sum(lo, hi) = sum(lo, mid) + sum(mid, hi), mid =
 * (lo + hi) / 2. Every rank has equally many consecutive chunks. A rank's pieces are the largest tree nodes whose
 * chunks are all local, in order. */
enum { CH_SUM_PIECES = 64 }; /* max per rank */
typedef struct ch_piece {
  int lo, hi;
} ch_piece;
int ch_comm_pieces(int grad_chunks, int rank, int size, ch_piece *pieces);

/* Elements per piece that a rank adds at a time. */
enum { CH_SUM_SLICE = 1 << 16 };

/* An array of `count` elements to sum: piece[i] holds the sum over this rank's i-th piece. `max`: the max count over
 * all groups that sum at the same time, so that all groups make equally many exchanges. Only the ranks in `to` get the
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

/* Reduce-scatter, then all-gather, of at most CH_AT_ONCE arrays: piece[0] becomes the sum over all gradient chunks on
 * the receiving ranks and is overwritten on the others. Arrays are reduced one at a time and gathered together. */
void ch_comm_sum(const ch_comm *comm, const char *what, int grad_chunks, const ch_comm_array *array, int arrays,
                 const ch_sum_buffers *buffers);

/* ch_comm_sum with temporary buffers from `arena`. A counting arena only counts the buffers. */
static inline void ch_comm_sum_in(ch_arena *arena, const ch_comm *comm, const char *what, int grad_chunks,
                                  const ch_comm_array *array, int arrays) {
  size_t mark = ch_arena_mark(arena);
  const ch_sum_buffers buffers = ch_comm_sum_buffers(comm, grad_chunks, arrays, arena);
  if (!ch_arena_counting(arena)) ch_comm_sum(comm, what, grad_chunks, array, arrays, &buffers);
  ch_arena_release(arena, mark);
}

/* Sums one number per gradient chunk in the order of the tree. */
double ch_add_grad_chunks(int grad_chunks, const double *shard);

#endif
