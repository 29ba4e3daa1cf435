/* Ranks: processes that train one model together, and the function table of a transport. A table implements one
 * operation, the exchange (begin, test, wait). All collectives (collective.h) are built on it, so sums have the same
 * order with every transport.
 *
 * Every function is collective: all ranks call it, in the same order, and every count is known on both sides. None can
 * fail: a process that cannot reach another one ends, and its launcher ends the rest. A rank with an error of its own
 * continues to the next ch_comm_agree, which reports the error on all ranks. */
#ifndef CH_COMM_COMM_H
#define CH_COMM_COMM_H

#include <stdint.h>

enum {
  CH_RANKS = 1024,          /* at most */
  CH_TRANSFERS = 24,        /* max exchanges in flight */
  CH_COMM_WORTH = 64 << 10, /* min bytes of a separate message over a network */
  CH_COMM_MEANS = 2         /* capacity for a rank's rows, as a multiple of the mean */
};

/* Bytes in host memory. ch_comm_begin also accepts device memory; tables only see host memory. */
typedef struct ch_bytes {
  void *at;
  int64_t bytes;
} ch_bytes;

/* Casts an address in CH_DEV memory (host or device) for an exchange. */
#define CH_HOST_OR_DEVICE(p) ((void *)(uintptr_t)(p))

/* An exchange in flight: send[r] is sent to rank r, receive[r] is received from it; the rank's own spans are ignored.
 * The table shortens the spans as it moves bytes, so they always describe the remainder. */
typedef struct ch_transfer {
  const char *what;         /* for messages */
  ch_bytes *send, *receive; /* [size]; spans and bytes belong to the table until the exchange has ended */
  int64_t number;           /* sequence number of the exchange, equal on all ranks */
  int place;                /* private to the table; -1: not in flight */
  int staged;               /* index among the transfers that end on a device (transfer.c); -1: on the host */
} ch_transfer;

/* What to wait for: all receives, or all sends as well, so that sent bytes may be changed. */
typedef enum { CH_ARRIVED, CH_ENDED } ch_transfer_state;

/* Bytes and messages sent to other ranks since the start, and time spent in exchanges. */
typedef struct ch_traffic {
  int64_t bytes, messages, exchanges;
  double seconds;
} ch_traffic;

struct ch_watch;

typedef struct ch_comm {
  const char *name;
  int rank, size;
  int first, stride; /* rank r is number first + r * stride of the whole job; 0 and 1 except in a group (grid.h) */
  int64_t piece;     /* max bytes per message: longer spans are split */
  int64_t worth;     /* min bytes per message when a span is split */
  int means; /* capacity for a rank's rows, as a multiple of the mean over ranks; more rows are sent in rounds */
  ch_traffic *traffic;    /* NULL on a single process */
  struct ch_watch *watch; /* when each rank was last heard (watch.h); NULL: no watchdog */
  void *context;          /* private to the table */
  /* Begins an exchange; sets t->place. Ranks are numbered within comm; ch_comm_number gives a rank's number in the
   * whole job. All ranks begin their exchanges in the same order; they may end them in any order. */
  void (*begin)(const struct ch_comm *comm, ch_transfer *t);
  /* Makes progress without waiting; nonzero when everything has been received and sent. */
  int (*test)(const struct ch_comm *comm, ch_transfer *t);
  /* Waits. Every exchange must be waited for once with CH_ENDED, which frees its place. All three report progress to
   * the watch. */
  void (*wait)(const struct ch_comm *comm, ch_transfer *t, ch_transfer_state until);
} ch_comm;

/* A group rank's number in the whole job, as tables and the watch use it. */
static inline int ch_comm_number(const ch_comm *comm, int rank) { return comm->first + rank * comm->stride; }

/* For `all` items spread evenly over ranks: the local count; and, for a local count, the index of this rank's first
 * item. */
static inline int64_t ch_local_count(const ch_comm *comm, int64_t all) { return all / comm->size; }
static inline int64_t ch_local_offset(const ch_comm *comm, int64_t local) { return local * comm->rank; }

/* One process. */
extern const ch_comm ch_comm_single;

/* ---- exchanges ----
 * Both sides know the byte counts. An exchange is one call, or a begin and a finish with work in between. It makes
 * progress during these calls (and in the background where the network supports it), so code that computes between
 * begin and finish calls ch_comm_test regularly. */

/* Copies the rank's own span (unless source and target are the same) and hands the others to the table, which counts
 * them. Device memory is staged in host memory: downloaded here, uploaded when everything has arrived. what: names the
 * exchange in messages about silent ranks. The spans [size] are consumed. */
void ch_comm_begin(const ch_comm *comm, ch_transfer *t, const char *what, ch_bytes *send, ch_bytes *receive);

/* Makes progress; nonzero when nothing is left to move or the exchange has ended. */
int ch_comm_test(const ch_comm *comm, ch_transfer *t);

/* ch_comm_arrive waits until all bytes have been received; ch_comm_finish also until the sent bytes may be changed.
 * Every exchange must be finished once. */
void ch_comm_arrive(const ch_comm *comm, ch_transfer *t);
void ch_comm_finish(const ch_comm *comm, ch_transfer *t);

/* Begin and finish in one call. */
void ch_comm_exchange(const ch_comm *comm, const char *what, ch_bytes *send, ch_bytes *receive);

#endif
