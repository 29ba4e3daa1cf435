/* Ranks: processes that train one model together, and the table of how they reach each other. A table brings one
 * function, `exchange`; everything else (collective.h) is made of it, so it adds in one order whoever carries the
 * bytes.
 *
 * Every function is collective: all ranks call it, in the same order, and every count is known on both sides. None can
 * fail: a process that cannot reach another one ends, and its launcher ends the rest. One that has failed by itself
 * goes on to the next ch_comm_agree, where all hear of it. */
#ifndef CH_COMM_COMM_H
#define CH_COMM_COMM_H

#include <stdint.h>

enum { CH_RANKS = 1024 }; /* at most */

/* Bytes in the host's memory. */
typedef struct ch_bytes {
  void *at;
  int64_t bytes;
} ch_bytes;

/* What a rank has sent to others since it began, and how long it was in exchanges. */
typedef struct ch_traffic {
  int64_t bytes, messages;
  double seconds;
} ch_traffic;

struct ch_watch;

typedef struct ch_comm {
  const char *name;
  int rank, size;
  int64_t piece;          /* bytes of one message at most: longer spans go in several */
  ch_traffic *traffic;    /* NULL where there are no others */
  struct ch_watch *watch; /* who is heard, and where (watch.h); NULL: nobody looks */
  void *context;          /* the table's own */
  /* send[r] goes to rank r, receive[r] comes from it; nothing is done for the rank itself. Returns when all that is
   * sent may be changed and all that is received is there; tells the watch what has come and gone meanwhile. */
  void (*exchange)(const struct ch_comm *comm, const ch_bytes *send, const ch_bytes *receive);
} ch_comm;

/* One process. */
extern const ch_comm ch_comm_single;

#endif
