/* Ranks over MPI: the one file that knows it. Point-to-point messages only, called by the first thread, outside of
 * parallel regions. MPI's own handling of errors stays: it names the call and ends all processes. */
#include <mpi.h>
#include <string.h>

#include "base/error.h"
#include "comm/collective.h"
#include "comm/launch.h"
#include "comm/watch.h"

enum { TAG = 1 };
static const int64_t PIECE = INT64_C(1) << 28; /* counts of MPI are int */

/* A process is in one MPI world, once. */
static MPI_Comm world;
static ch_traffic traffic;
static ch_comm table;

/* Piece number `number` of a span. */
static ch_bytes piece_of(const ch_comm *comm, ch_bytes whole, int64_t number) {
  int64_t from = number * comm->piece, left = whole.bytes - from;
  return (ch_bytes){(char *)whole.at + from, left < 0 ? 0 : left < comm->piece ? left : comm->piece};
}

/* Messages of one piece number that are under way. */
typedef struct {
  MPI_Request request[2 * CH_RANKS];
  int rank[2 * CH_RANKS]; /* of the other side */
  int count, received;    /* those that come stand first */
} messages;

/* Waits for all, and tells the watch of each. */
static void finish(const ch_comm *comm, messages *m, const ch_bytes *send, const ch_bytes *receive, int64_t number) {
  int done[2 * CH_RANKS], some;
  for (int left = m->count; left; left -= some) {
    MPI_Waitsome(m->count, m->request, &some, done, MPI_STATUSES_IGNORE);
    for (int i = 0; i < some; i++) {
      int r = m->rank[done[i]], comes = done[i] < m->received;
      if ((comes ? receive : send)[r].bytes > (number + 1) * comm->piece)
        ch_watch_moved(comm);
      else
        (comes ? ch_watch_heard : ch_watch_sent)(comm, r);
    }
  }
}

/* All receive first; each sends to the rank behind it first, so that not all begin with the same one. Messages of a
 * pair arrive in order, so pieces need no numbers. */
static void exchange(const ch_comm *comm, const ch_bytes *send, const ch_bytes *receive) {
  for (int64_t number = 0, more = 1; more; number++) {
    messages m = {.count = 0};
    more = 0;
    for (int i = 1; i < comm->size; i++) {
      int from = (comm->rank + comm->size - i) % comm->size;
      ch_bytes in = piece_of(comm, receive[from], number);
      more |= receive[from].bytes > (number + 1) * comm->piece;
      if (!in.bytes) continue;
      MPI_Irecv(in.at, (int)in.bytes, MPI_BYTE, from, TAG, world, &m.request[m.count]);
      m.rank[m.count++] = from;
    }
    m.received = m.count;
    for (int i = 1; i < comm->size; i++) {
      int to = (comm->rank + i) % comm->size;
      ch_bytes out = piece_of(comm, send[to], number);
      more |= send[to].bytes > (number + 1) * comm->piece;
      if (!out.bytes) continue;
      MPI_Isend(out.at, (int)out.bytes, MPI_BYTE, to, TAG, world, &m.request[m.count]);
      m.rank[m.count++] = to;
    }
    finish(comm, &m, send, receive, number);
  }
}

int ch_mpi_join(int expected, const ch_comm **comm) {
  int provided, rank, size, length;
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Get_library_version(version, &length);
  version[strcspn(version, ",\n")] = 0;
  if (size != expected || size > CH_RANKS) {
    MPI_Finalize();
    if (size > CH_RANKS)
      return ch_error(CHOIR_ERROR_UNSUPPORTED, "%d processes: %d can work together at most", size, CH_RANKS);
    return ch_error(CHOIR_ERROR_IO,
                    "the launcher started %d processes, and %s, which choir is built with, found %d: start them with "
                    "the launcher of that MPI",
                    expected, version, size);
  }
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  table = (ch_comm){.name = "mpi",
                    .rank = rank,
                    .size = size,
                    .piece = PIECE,
                    .traffic = &traffic,
                    .watch = ch_watch_new(),
                    .exchange = exchange};
  *comm = &table;
  return CHOIR_OK;
}

void ch_mpi_leave(void) {
  ch_watch_free(table.watch);
  MPI_Comm_free(&world);
  MPI_Finalize();
}
