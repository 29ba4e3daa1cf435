/* Ranks: processes that train one model together, and the table of how they reach each other. A table brings an
 * exchange, which it begins, moves on and ends; everything else (collective.h) is made of it, so it adds in
 * one order whoever carries the bytes.
 *
 * Every function is collective: all ranks call it, in the same order, and every count is known on both sides. None can
 * fail: a process that cannot reach another one ends, and its launcher ends the rest. A rank with an error of its own
 * continues to the next ch_comm_agree, which reports the error on all ranks. */
#ifndef CH_COMM_COMM_H
#define CH_COMM_COMM_H

#include <stdint.h>

enum {
  CH_RANKS = 1024,          /* at most */
  CH_TRANSFERS = 24,        /* under way at a time, at most */
  CH_COMM_WORTH = 64 << 10, /* bytes of a message over a network that are worth one of their own */
  CH_COMM_MEANS = 2         /* room for rows of a rank's tokens, in means over ranks */
};

/* Bytes in the host's memory or, to begin an exchange with, a device's: tables are given those of the host alone. */
typedef struct ch_bytes {
  void *at;
  int64_t bytes;
} ch_bytes;

/* An address of memory in CH_DEV, as exchanges take it: the host's or a device's. */
#define CH_HOST_OR_DEVICE(p) ((void *)(uintptr_t)(p))

/* An exchange that has begun and not ended: send[r] goes to rank r, receive[r] comes from it; nothing is done for the
 * rank itself. The table shortens the spans as it moves bytes, so they always describe the remainder. */
typedef struct ch_transfer {
  const char *what;         /* for messages */
  ch_bytes *send, *receive; /* [size], and the bytes they point to: the table's until it has ended */
  int64_t number;           /* of all exchanges since the start: the same on all ranks */
  int place;                /* private to the table; -1: not under way */
  int staged;               /* index among the transfers that end on a device (transfer.c); -1: on the host */
} ch_transfer;

/* How far to wait: until everything has arrived, or until the sent bytes may be changed, too. */
typedef enum { CH_ARRIVED, CH_ENDED } ch_transfer_state;

/* Bytes and messages that a rank has sent to others since it began, and the time that it was in exchanges. */
typedef struct ch_traffic {
  int64_t bytes, messages, exchanges;
  double seconds;
} ch_traffic;

struct ch_watch;

typedef struct ch_comm {
  const char *name;
  int rank, size;
  int first, stride;      /* rank r is number first + r * stride of all: 0 and 1, but of a group (grid.h) */
  int64_t piece;          /* bytes of one message at most: longer spans go in several */
  int64_t worth;          /* smallest message in bytes: shorter spans are not split */
  int means;              /* capacity for a rank's rows, as a multiple of the mean over ranks; more rows take rounds */
  ch_traffic *traffic;    /* NULL on a single process */
  struct ch_watch *watch; /* when each rank was last heard (watch.h); NULL: no watchdog */
  void *context;          /* private to the table */
  /* Begins an exchange; sets t->place. Ranks are numbered within comm; ch_comm_number gives a rank's number in the
   * whole job. All ranks begin their exchanges in the same order, but may end them in another. */
  void (*begin)(const struct ch_comm *comm, ch_transfer *t);
  /* Makes progress without waiting; nonzero when everything has been received and sent. */
  int (*test)(const struct ch_comm *comm, ch_transfer *t);
  /* Waits. Every exchange waits once for CH_ENDED, which frees its place. All three report progress to the watch. */
  void (*wait)(const struct ch_comm *comm, ch_transfer *t, ch_transfer_state until);
} ch_comm;

/* A group rank's number in the whole job, as tables and the watch use it. */
static inline int ch_comm_number(const ch_comm *comm, int rank) { return comm->first + rank * comm->stride; }

/* Things that every rank has equally many of, `all` together: how many a rank has; and, of `own` on every rank, which
 * is this rank's first. */
static inline int64_t ch_local_count(const ch_comm *comm, int64_t all) { return all / comm->size; }
static inline int64_t ch_local_offset(const ch_comm *comm, int64_t local) { return local * comm->rank; }

/* One process. */
extern const ch_comm ch_comm_single;

/* ---- exchanges ----
 * Both sides know the byte counts. An exchange is one call, or a begin and a finish with work in between. It makes
 * progress during these calls (and in the background where the network supports it), so code that computes between
 * begin and finish calls ch_comm_test now and then. */

/* Copies the rank's own span (unless source and target are the same) and hands the others to the table, which counts
 * them. Device memory goes through the host, with one copy each way: to the host here, back to the device when
 * everything has arrived. what: names the exchange in messages about silent ranks. The spans [size] are consumed. */
void ch_comm_begin(const ch_comm *comm, ch_transfer *t, const char *what, ch_bytes *send, ch_bytes *receive);

/* Makes progress; nonzero when nothing is left to move or the exchange has ended. */
int ch_comm_test(const ch_comm *comm, ch_transfer *t);

/* Arrive waits until all bytes have been received, finish until the sent bytes may be changed, too. Every exchange is
 * finished once. */
void ch_comm_arrive(const ch_comm *comm, ch_transfer *t);
void ch_comm_finish(const ch_comm *comm, ch_transfer *t);

/* Begin and finish in one call. */
void ch_comm_exchange(const ch_comm *comm, const char *what, ch_bytes *send, ch_bytes *receive);

#endif
