/* Ranks: processes that train one model together, and the table of how they reach each other. A table brings an
 * exchange, which it begins, moves on and ends; everything else (collective.h) is made of it, so it adds in
 * one order whoever carries the bytes.
 *
 * Every function is collective: all ranks call it, in the same order, and every count is known on both sides. None can
 * fail: a process that cannot reach another one ends, and its launcher ends the rest. One that has failed by itself
 * goes on to the next ch_comm_agree, where all hear of it. */
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

/* An exchange that has begun and not ended: send[r] goes to rank r, receive[r] comes from it; nothing is done for the
 * rank itself. The table takes off these spans what it has moved: what they say is what is left. */
typedef struct ch_transfer {
  const char *what;         /* for messages */
  ch_bytes *send, *receive; /* [size], and the bytes they point to: the table's until it has ended */
  int64_t number;           /* of all exchanges since the start: the same on all ranks */
  int place;                /* the table's own; -1: it is not under way */
  int staged;               /* place among those that bring something to a device (transfer.c); -1: it does not */
} ch_transfer;

/* How far to wait: until everything has arrived, or until also what is sent may be changed. */
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
  int64_t worth;          /* bytes of a message that are worth one of their own: less is not cut */
  int means;              /* rows of its tokens that a rank has room for, in means over ranks: more go in rounds */
  ch_traffic *traffic;    /* NULL where there are no others */
  struct ch_watch *watch; /* who is heard, and where (watch.h); NULL: nobody looks */
  void *context;          /* the table's own */
  /* Ranks of a transfer are comm's; whom they are among all says ch_comm_number. Sets t->place. All ranks begin their
   * exchanges in the same order; they may end in another. */
  void (*begin)(const struct ch_comm *comm, ch_transfer *t);
  /* Moves what can be moved, and does not wait: nonzero when all has come and gone. */
  int (*test)(const struct ch_comm *comm, ch_transfer *t);
  /* Waits. With CH_ENDED, which every exchange gets once, the place is free. All three tell the watch what moves. */
  void (*wait)(const struct ch_comm *comm, ch_transfer *t, ch_transfer_state until);
} ch_comm;

/* The number among all ranks, by which tables and the watch know it, of a group's rank. */
static inline int ch_comm_number(const ch_comm *comm, int rank) { return comm->first + rank * comm->stride; }

/* One process. */
extern const ch_comm ch_comm_single;

/* ---- exchanges ----
 * Of bytes whose counts both sides know: at once, or begun here and ended there, with work in between. They
 * make progress while the process is in one of these calls (and by the network itself, as far as that can): whoever
 * computes between begin and finish calls ch_comm_test now and then. */

/* The rank's own span is copied, unless it stands where it goes; the rest is the table's, and counted. What stands on a
 * device goes through the host, one copy each way: to it here, and from it when all has arrived. what: for messages
 * about ranks that are not heard. The spans [size] are used up. */
void ch_comm_begin(const ch_comm *comm, ch_transfer *t, const char *what, ch_bytes *send, ch_bytes *receive);

/* Nonzero when it has nothing left to move, or has ended already. */
int ch_comm_test(const ch_comm *comm, ch_transfer *t);

/* Waits until all that comes is there; until what was sent may be changed, too. Every exchange is finished once. */
void ch_comm_arrive(const ch_comm *comm, ch_transfer *t);
void ch_comm_finish(const ch_comm *comm, ch_transfer *t);

/* All at once. */
void ch_comm_exchange(const ch_comm *comm, const char *what, ch_bytes *send, ch_bytes *receive);

#endif
