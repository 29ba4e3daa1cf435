/* Ranks over MPI: the one file that knows it. Point-to-point messages only, called by the first thread, outside of
 * parallel regions. MPI's own handling of errors stays: it names the call and ends all processes. */
#include <mpi.h>
#include <string.h>

#include "base/error.h"
#include "comm/collective.h"
#include "comm/launch.h"

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

/* All receive first; each sends to the rank behind it first, so that not all begin with the same one. Messages of a
 * pair arrive in order, so pieces need no numbers. */
static void exchange(const ch_comm *comm, const ch_bytes *send, const ch_bytes *receive) {
  MPI_Request request[2 * CH_RANKS];
  for (int64_t number = 0, more = 1; more; number++) {
    int count = 0;
    more = 0;
    for (int i = 1; i < comm->size; i++) {
      int from = (comm->rank + comm->size - i) % comm->size;
      ch_bytes in = piece_of(comm, receive[from], number);
      if (in.bytes) MPI_Irecv(in.at, (int)in.bytes, MPI_BYTE, from, TAG, world, &request[count++]);
      more |= receive[from].bytes > (number + 1) * comm->piece;
    }
    for (int i = 1; i < comm->size; i++) {
      int to = (comm->rank + i) % comm->size;
      ch_bytes out = piece_of(comm, send[to], number);
      if (out.bytes) MPI_Isend(out.at, (int)out.bytes, MPI_BYTE, to, TAG, world, &request[count++]);
      more |= send[to].bytes > (number + 1) * comm->piece;
    }
    MPI_Waitall(count, request, MPI_STATUSES_IGNORE);
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
  table =
      (ch_comm){.name = "mpi", .rank = rank, .size = size, .piece = PIECE, .traffic = &traffic, .exchange = exchange};
  *comm = &table;
  return CHOIR_OK;
}

void ch_mpi_leave(void) {
  MPI_Comm_free(&world);
  MPI_Finalize();
}
