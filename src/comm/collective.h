/* What ranks do together, made of exchanges. One process does nothing, or its own part. */
#ifndef CH_COMM_COLLECTIVE_H
#define CH_COMM_COLLECTIVE_H

#include "base/real.h"
#include "comm/transfer.h"

/* The share of rank r of `count` things in a row: from ch_share(count, r, size) to ch_share(count, r + 1, size). */
static inline int64_t ch_share(int64_t count, int64_t rank, int64_t size) { return count * rank / size; }

/* all [size * bytes]: every rank brings its part, which stands in its place, and gets those of all. */
void ch_comm_gather(const ch_comm *comm, const char *what, void *all, int64_t bytes);

/* The same of parts of a row of `count` things of `bytes` each, by ch_share. */
void ch_comm_gather_shares(const ch_comm *comm, const char *what, void *all, int64_t count, int64_t bytes);

/* The largest of all ranks' values. */
int64_t ch_comm_max(const ch_comm *comm, int64_t value);

/* The largest code over ranks, so that a failure of one is an error of all before any of them leaves; its message is
 * that of the lowest rank that has the code, and says which it is. */
int ch_comm_agree(const ch_comm *comm, int code);

/* One rank's bytes to all. */
void ch_comm_broadcast(const ch_comm *comm, int root, void *data, int64_t bytes);

/* One rank's `count` things of `bytes` each to all, where they are many: a share to each, and each gives it to all, so
 * that nobody sends more than twice what there is. */
void ch_comm_spread(const ch_comm *comm, const char *what, int root, void *data, int64_t count, int64_t bytes);

/* CHOIR_ERROR_ARGUMENT on all ranks where one has another fact [count] than the first rank, saying which: "config". */
enum { CH_FACTS = 9 };
int ch_comm_same(const ch_comm *comm, int count, const char *const *name, const uint64_t *fact);

/* Sums over shards in a fixed binary tree (op/shards.h): sum(lo, hi) = sum(lo, mid) + sum(mid, hi), mid = (lo + hi)
 * / 2. Every rank has as many shards, one behind the other. What it has of the tree by itself are pieces: the largest
 * nodes whose shards are all its own, in order. */
enum { CH_SUM_PIECES = 64 }; /* of one rank, at most */
typedef struct ch_piece {
  int lo, hi;
} ch_piece;
int ch_comm_pieces(int shards, int rank, int size, ch_piece *pieces);

/* Every `every`-th rank, from `first` on. */
typedef struct ch_receivers {
  int first, every; /* first < every */
} ch_receivers;
static inline int ch_receives(const ch_receivers *r, int rank) { return rank % r->every == r->first; }

/* piece[i] [count], the sums of this rank's pieces, become in piece[0] the sum of all shards: each rank adds its share
 * of the elements and gives it to the receivers, NULL being all ranks; on the others piece[0] is used up. most: the
 * largest count of any group that sums meanwhile, so that all have as many exchanges. `room` has ch_comm_sum_room
 * elements. */
void ch_comm_sum(const ch_comm *comm, const char *what, int shards, real *const *piece, int64_t count, int64_t most,
                 const ch_receivers *to, real *room);
int64_t ch_comm_sum_room(const ch_comm *comm, int shards);

/* The same tree over one number a shard. */
double ch_add_shards(int shards, const double *shard);

#endif
