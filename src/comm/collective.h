/* Collective calls, made of exchanges. One process does nothing, or its own part. */
#ifndef CH_COMM_COLLECTIVE_H
#define CH_COMM_COLLECTIVE_H

#include "base/memory.h"
#include "base/real.h"
#include "comm/comm.h"

/* The share of rank r of `count` things in a row: from ch_share(count, r, size) to ch_share(count, r + 1, size). */
static inline int64_t ch_share(int64_t count, int64_t rank, int64_t size) { return count * rank / size; }

/* The same as bytes, of things of `bytes` each. */
static inline ch_bytes ch_share_of(const void *all, int64_t count, int64_t bytes, int64_t rank, int64_t size) {
  int64_t first = ch_share(count, rank, size), last = ch_share(count, rank + 1, size);
  return (ch_bytes){(char *)(uintptr_t)all + first * bytes, (last - first) * bytes};
}

/* Arrays that one function has under way at a time, at most, and the spans of one, for each rank. */
enum { CH_AT_ONCE = 8, CH_SPANS = 2 };

/* Every `every`-th rank, from `first` on. */
typedef struct ch_receivers {
  int first, every; /* first < every */
} ch_receivers;
static inline int ch_receives(const ch_receivers *r, int rank) { return rank % r->every == r->first; }

/* all [size * bytes]: every rank brings its part, which stands in its place, and gets those of all. */
void ch_comm_gather(const ch_comm *comm, const char *what, void *all, int64_t bytes);

/* The same of parts of a row of `count` things of `bytes` each, by ch_share. */
void ch_comm_gather_shares(const ch_comm *comm, const char *what, void *all, int64_t count, int64_t bytes);

/* Begins that; `to` alone get all, NULL being everybody. spans: [CH_SPANS, size], used until it has ended. */
void ch_comm_gather_begin(const ch_comm *comm, ch_transfer *t, const char *what, void *all, int64_t count,
                          int64_t bytes, const ch_receivers *to, ch_bytes *spans);

/* The largest of all ranks' values. */
int64_t ch_comm_max(const ch_comm *comm, int64_t value);

/* The largest code over ranks, so that a failure of one is an error of all before any of them leaves; its message is
 * that of the lowest rank that has the code, and says which it is. */
int ch_comm_agree(const ch_comm *comm, int code);

/* One rank's bytes to all. */
void ch_comm_broadcast(const ch_comm *comm, int root, void *data, int64_t bytes);

/* An array that all are to have as its owner has it. */
typedef struct ch_spread {
  int owner;
  void *data;
  int64_t bytes;
} ch_spread;

/* Some of them on their way, beside other work: collective.c says how. All ranks take the next step, of two, and end at
 * the same places among their exchanges. */
typedef struct ch_spreading {
  const char *what;
  const ch_spread *some; /* [count], any number of them */
  int count;
  int steps;       /* taken: 0 at first */
  ch_bytes *spans; /* [count, CH_SPANS, size], of CH_AT_ONCE at most */
  ch_transfer transfer[CH_AT_ONCE];
} ch_spreading;
void ch_comm_spread_next(const ch_comm *comm, ch_spreading *s); /* waits for the step before; nothing after the last */
void ch_comm_spread_move(const ch_comm *comm, ch_spreading *s); /* as often as may be */
void ch_comm_spread_end(const ch_comm *comm, ch_spreading *s);  /* all are there, whatever was left: count is 0 */

/* What all ranks must have alike, as a number, and its name: "config". */
typedef struct ch_fact {
  const char *name;
  uint64_t value;
} ch_fact;
enum { CH_FACTS = 16 }; /* at most */

/* CHOIR_ERROR_ARGUMENT on all ranks where one has another fact [count] than the first rank, naming it. CH_SAME takes an
 * array of them, and is no program where it is too long. */
int ch_comm_same(const ch_comm *comm, int count, const ch_fact *fact);
#define CH_SAME(comm, facts)                                                                                           \
  ch_comm_same(                                                                                                        \
      comm,                                                                                                            \
      (int)(sizeof(facts) / sizeof *(facts) + 0 * sizeof(char[sizeof(facts) / sizeof *(facts) <= CH_FACTS ? 1 : -1])), \
      facts)

/* Sums over shards in a fixed binary tree (op/shards.h): sum(lo, hi) = sum(lo, mid) + sum(mid, hi), mid = (lo + hi)
 * / 2. Every rank has as many shards, one behind the other. What it has of the tree by itself are pieces: the largest
 * nodes whose shards are all its own, in order. */
enum { CH_SUM_PIECES = 64 }; /* of one rank, at most */
typedef struct ch_piece {
  int lo, hi;
} ch_piece;
int ch_comm_pieces(int shards, int rank, int size, ch_piece *pieces);

/* Elements of every piece that a rank adds at a time. */
enum { CH_SUM_SLICE = 1 << 16 };

/* One array of `count` elements: piece[i], the sums of this rank's pieces. `most`: the largest count of any group that
 * sums meanwhile, so that all have as many exchanges. `to` alone get the sum, NULL being everybody. */
typedef struct ch_comm_array {
  real *const *piece;
  int64_t count, most;
  const ch_receivers *to;
} ch_comm_array;

typedef struct ch_sum_room {
  real *piece;     /* slices of the pieces of all ranks */
  ch_bytes *spans; /* [arrays, CH_SPANS, size] */
} ch_sum_room;
ch_sum_room ch_comm_sum_room(const ch_comm *comm, int shards, int arrays, ch_arena *arena);

/* In piece[0] of every array, CH_AT_ONCE at most, stands then the sum of all shards: each rank adds its share of the
 * elements, of one array after the other, and gives its shares of all at once to those that get them; on the others
 * piece[0] is used up. */
void ch_comm_sum(const ch_comm *comm, const char *what, int shards, const ch_comm_array *array, int arrays,
                 const ch_sum_room *room);

/* The same tree over one number a shard. */
double ch_add_shards(int shards, const double *shard);

#endif
