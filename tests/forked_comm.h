/* Ranks for tests: processes made by fork that exchange through shared memory. Each pair has one buffer a direction;
 * whoever finds it empty fills it, whoever finds it full empties it. */
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

enum { FORKED_MOST = 8, FORKED_PIECE = 1 << 14 };

typedef struct {
  atomic_int full;
  int64_t bytes;
  char data[FORKED_PIECE];
} forked_box;

/* [from][to] */
typedef struct {
  forked_box box[FORKED_MOST][FORKED_MOST];
} forked_shared;

/* Sends and receives what can be: whether all is done. */
static inline int forked_some(const ch_comm *comm, ch_bytes *send, ch_bytes *receive) {
  forked_shared *shared = comm->context;
  int left = 0;
  for (int r = 0; r < comm->size; r++) {
    forked_box *out = &shared->box[comm->rank][r], *in = &shared->box[r][comm->rank];
    if (r == comm->rank) continue;
    if (send[r].bytes && !atomic_load_explicit(&out->full, memory_order_acquire)) {
      out->bytes = send[r].bytes < comm->piece ? send[r].bytes : comm->piece;
      memcpy(out->data, send[r].at, (size_t)out->bytes);
      send[r] = (ch_bytes){(char *)send[r].at + out->bytes, send[r].bytes - out->bytes};
      send[r].bytes ? ch_watch_moved(comm) : ch_watch_sent(comm, r);
      atomic_store_explicit(&out->full, 1, memory_order_release);
    }
    if (receive[r].bytes && atomic_load_explicit(&in->full, memory_order_acquire)) {
      if (in->bytes > receive[r].bytes) abort(); /* counts differ */
      memcpy(receive[r].at, in->data, (size_t)in->bytes);
      receive[r] = (ch_bytes){(char *)receive[r].at + in->bytes, receive[r].bytes - in->bytes};
      receive[r].bytes ? ch_watch_moved(comm) : ch_watch_heard(comm, r);
      atomic_store_explicit(&in->full, 0, memory_order_release);
    }
    left += send[r].bytes || receive[r].bytes;
  }
  return !left;
}

static inline void forked_exchange(const ch_comm *comm, const ch_bytes *send, const ch_bytes *receive) {
  ch_bytes out[FORKED_MOST], in[FORKED_MOST];
  memcpy(out, send, (size_t)comm->size * sizeof *out);
  memcpy(in, receive, (size_t)comm->size * sizeof *in);
  for (int tries = 0; !forked_some(comm, out, in); tries++)
    if (tries < 20)
      sched_yield();
    else
      usleep(50); /* there are more of them than cores */
}

/* Runs `body` in `size` processes; 0 when all of them returned 0. One that fails or dies takes the rest along. */
static inline int forked_run(int size, int64_t piece, int (*body)(const ch_comm *comm, void *context), void *context) {
  forked_shared *shared =
      mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  pid_t child[FORKED_MOST];
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
                    .piece = piece > 0 && piece < FORKED_PIECE ? piece : FORKED_PIECE,
                    .traffic = &traffic,
                    .watch = ch_watch_new(),
                    .context = shared,
                    .exchange = forked_exchange};
    int code = body(size > 1 ? &comm : &ch_comm_single, context);
    ch_watch_free(comm.watch);
    fflush(NULL);
    _exit(code);
  }
  for (int left = size; left; left--) {
    pid_t ended = wait(&status);
    if (!status) continue;
    failed = 1;
    for (int r = 0; r < size; r++)
      if (child[r] != ended) kill(child[r], SIGKILL);
  }
  munmap(shared, sizeof *shared);
  return failed;
}

#endif
