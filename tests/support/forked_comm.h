/* Ranks for tests: processes made by fork that exchange through shared memory. Each pair has one buffer a direction,
 * which the sender fills when it is empty and the receiver empties when it is full. */
#ifndef CH_TESTS_FORKED_COMM_H
#define CH_TESTS_FORKED_COMM_H

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/watch.h"
#include "testing.h"

enum { FORKED_MAX = 16, FORKED_PIECE = 1 << 14, FORKED_WORTH = 1 << 11 };

/* The ranks that are made next plan for so many means: 0 has all rows go in rounds, as small as they can be. */
static int forked_means = CH_COMM_MEANS;

typedef struct {
  atomic_int full;
  int64_t number, bytes; /* of the exchange; of this piece */
  char data[FORKED_PIECE];
} forked_box;

/* [from][to] */
typedef struct {
  forked_box box[FORKED_MAX][FORKED_MAX];
} forked_shared;

/* This process has these under way, in the order in which they began: a box takes pieces in that order, so the one that
 * is looked at first is never behind another. Each may be of another group. */
static struct {
  const ch_comm *comm;
  ch_transfer *transfer;
} forked_under_way[CH_TRANSFERS];

static inline forked_box *forked_way(const ch_comm *comm, int from, int to) {
  return &((forked_shared *)comm->context)->box[ch_comm_number(comm, from)][ch_comm_number(comm, to)];
}

static inline void forked_send(const ch_comm *comm, ch_transfer *t, int r) {
  forked_box *out = forked_way(comm, comm->rank, r);
  ch_bytes *span = &t->send[r];
  if (atomic_load_explicit(&out->full, memory_order_acquire)) return;
  out->number = t->number;
  out->bytes = span->bytes < comm->piece ? span->bytes : comm->piece;
  memcpy(out->data, span->at, (size_t)out->bytes);
  *span = (ch_bytes){(char *)span->at + out->bytes, span->bytes - out->bytes};
  ch_watch_moved(comm, t, r, 0);
  atomic_store_explicit(&out->full, 1, memory_order_release);
}

static inline void forked_receive(const ch_comm *comm, ch_transfer *t, int r) {
  forked_box *in = forked_way(comm, r, comm->rank);
  ch_bytes *span = &t->receive[r];
  if (!atomic_load_explicit(&in->full, memory_order_acquire) || in->number != t->number) return;
  if (in->bytes > span->bytes) abort(); /* counts differ */
  memcpy(span->at, in->data, (size_t)in->bytes);
  *span = (ch_bytes){(char *)span->at + in->bytes, span->bytes - in->bytes};
  ch_watch_moved(comm, t, r, 1);
  atomic_store_explicit(&in->full, 0, memory_order_release);
}

/* Moves bytes of every transfer under way whose buffer is ready. */
static inline void forked_move(void) {
  int behind[FORKED_MAX] = {0}; /* by number among all: something is still to go there */
  for (int i = 0; i < CH_TRANSFERS && forked_under_way[i].comm; i++) {
    const ch_comm *comm = forked_under_way[i].comm;
    ch_transfer *t = forked_under_way[i].transfer;
    for (int r = 0; r < comm->size; r++) {
      int *wait = &behind[ch_comm_number(comm, r)];
      if (!*wait && t->send[r].bytes) forked_send(comm, t, r);
      *wait |= t->send[r].bytes > 0;
      if (t->receive[r].bytes) forked_receive(comm, t, r);
    }
  }
}

static inline int forked_left(const ch_comm *comm, const ch_transfer *t, ch_transfer_state until) {
  for (int r = 0; r < comm->size; r++)
    if (t->receive[r].bytes || (until == CH_ENDED && t->send[r].bytes)) return 1;
  return 0;
}

static inline void forked_begin(const ch_comm *comm, ch_transfer *t) {
  int place = 0;
  while (place < CH_TRANSFERS && forked_under_way[place].comm) place++;
  if (place == CH_TRANSFERS) abort(); /* too many */
  forked_under_way[place].comm = comm;
  forked_under_way[place].transfer = t;
  t->place = 0;
  forked_move();
}

static inline int forked_test(const ch_comm *comm, ch_transfer *t) {
  forked_move();
  return !forked_left(comm, t, CH_ENDED);
}

static inline void forked_wait(const ch_comm *comm, ch_transfer *t, ch_transfer_state until) {
  int place = 0;
  for (int tries = 0; forked_move(), forked_left(comm, t, until); tries++)
    if (tries < 20)
      sched_yield();
    else
      usleep(50); /* more ranks than cores */
  if (until == CH_ARRIVED) return;
  while (forked_under_way[place].transfer != t) place++;
  for (; place + 1 < CH_TRANSFERS; place++) forked_under_way[place] = forked_under_way[place + 1];
  forked_under_way[place].comm = NULL;
}

/* Runs `body` in `size` processes; 0 when all of them returned 0. One that fails or dies takes the rest along. */
static inline int forked_run(int size, int64_t piece, int (*body)(const ch_comm *comm, void *context), void *context) {
  forked_shared *shared =
      mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  pid_t child[FORKED_MAX];
  int failed = 0, status;
  if (shared == MAP_FAILED) abort();
  fflush(NULL);
  for (int r = 0; r < size; r++) {
    if ((child[r] = fork())) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ch_traffic traffic = {0};
    ch_comm comm = {.name = "forked",
                    .rank = r,
                    .size = size,
                    .stride = 1,
                    .piece = piece > 0 && piece < FORKED_PIECE ? piece : FORKED_PIECE,
                    .worth = FORKED_WORTH,
                    .means = forked_means,
                    .traffic = &traffic,
                    .watch = ch_watch_new(),
                    .context = shared,
                    .begin = forked_begin,
                    .test = forked_test,
                    .wait = forked_wait};
    int code = body(size > 1 ? &comm : &ch_comm_single, context);
    ch_watch_free(comm.watch);
    fflush(NULL);
    _exit(code);
  }
  for (int left = size; left > 0; left--) {
    pid_t ended = wait(&status);
    for (int r = 0; r < size; r++)
      if (child[r] == ended) child[r] = 0;
    if (!status) continue;
    failed = 1;
    for (int r = 0; r < size; r++) test_signal(child[r], SIGKILL);
  }
  munmap(shared, sizeof *shared);
  return failed;
}

#endif
