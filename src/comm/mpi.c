/* The transport over MPI, the only file that calls MPI. Point-to-point messages only, called by the main thread outside
 * of parallel regions. MPI's default error handler remains: it names the call and ends all processes. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "comm/collective.h"
#include "comm/launch.h"
#include "comm/watch.h"

#ifdef CHOIR_MPI_ANY
#include "comm/mpi_any.h"
#else
#include <mpi.h>
static int ch_mpi_open(void) { return CHOIR_OK; } /* linked */
#endif

static const int64_t PIECE = INT64_C(1) << 28; /* MPI counts are int */

/* The messages of a transfer, receives first. A span has one message in flight at a time, because it may need
 * several. */
typedef struct {
  MPI_Request request[2 * CH_RANKS];
  int rank[2 * CH_RANKS]; /* peer of each message */
  int count, receives;    /* of spans */
  int left, to_come;      /* of them */
  int in_use;
} messages;

/* A process joins MPI once. The world is not duplicated, because MPI_Comm_dup waits for all ranks outside of the
 * watchdog. */
static const MPI_Comm world = MPI_COMM_WORLD;
static ch_traffic traffic;
static ch_comm table;
static messages under_way[CH_TRANSFERS];
static MPI_Status status[2 * CH_RANKS]; /* of the messages just completed */

static ch_bytes *span_of(const messages *m, const ch_transfer *t, int i) {
  return &(i < m->receives ? t->receive : t->send)[m->rank[i]];
}

static int64_t first_piece(const ch_comm *comm, const ch_bytes *span) {
  return span->bytes < comm->piece ? span->bytes : comm->piece;
}

/* Several exchanges are in flight; the tag identifies the exchange. Pieces of a span are sent one at a time. */
static void post(const ch_comm *comm, messages *m, const ch_transfer *t, int i) {
  enum { TAGS = 1 << 14 }; /* MPI guarantees 2^15 */
  const ch_bytes *span = span_of(m, t, i);
  int bytes = (int)first_piece(comm, span), tag = (int)(t->number % TAGS), other = ch_comm_number(comm, m->rank[i]);
  if (i < m->receives)
    MPI_Irecv(span->at, bytes, MPI_BYTE, other, tag, world, &m->request[i]);
  else
    MPI_Isend(span->at, bytes, MPI_BYTE, other, tag, world, &m->request[i]);
}

/* Posts all receives first. Each rank sends first to the next rank, so that not all ranks send to the same one. */
static void begin_transfer(const ch_comm *comm, ch_transfer *t) {
  int place = 0;
  while (under_way[place].in_use) place++; /* at most CH_TRANSFERS are in flight */
  messages *m = &under_way[t->place = place];
  m->in_use = 1;
  m->count = 0;
  for (int i = 1; i < comm->size; i++) {
    int from = (comm->rank + comm->size - i) % comm->size;
    if (t->receive[from].bytes) m->rank[m->count++] = from;
  }
  m->receives = m->to_come = m->count;
  for (int i = 1; i < comm->size; i++) {
    int to = (comm->rank + i) % comm->size;
    if (t->send[to].bytes) m->rank[m->count++] = to;
  }
  m->left = m->count;
  for (int i = 0; i < m->count; i++) post(comm, m, t, i);
}

/* Both sides know every count. MPI ends the job if a message is longer than expected but accepts a shorter one, which
 * would leave stale bytes at the buffer's end, so this function ends the job too. (Not by MPI's error handler, because
 * Open MPI loses its message when several processes end.) */
static void check_length(const ch_comm *comm, const ch_transfer *t, int from, int64_t bytes, const MPI_Status *of) {
  int came;
  MPI_Get_count(of, MPI_BYTE, &came);
  if (came == bytes) return;
  fprintf(stderr,
          "choir: rank %d of %d: %d bytes came from rank %d in exchange %lld (%s), which should be %lld: ranks that do "
          "not agree, by a fault in choir, in MPI or of the network; go on from the newest checkpoint\n",
          comm->rank, comm->size, came, from, (long long)t->number, t->what, (long long)bytes);
  nanosleep(&(struct timespec){.tv_sec = 1}, NULL); /* Open MPI 5 may end the job before mpirun has read stderr */
  MPI_Abort(world, 1);
}

/* After a message: advances its span and posts the next message. */
static void moved(const ch_comm *comm, messages *m, const ch_transfer *t, int i, const MPI_Status *of) {
  ch_bytes *span = span_of(m, t, i);
  int64_t bytes = first_piece(comm, span);
  if (i < m->receives) check_length(comm, t, m->rank[i], bytes, of);
  *span = (ch_bytes){(char *)span->at + bytes, span->bytes - bytes};
  ch_watch_moved(comm, t, m->rank[i], i < m->receives);
  if (span->bytes) {
    post(comm, m, t, i);
  } else {
    m->left--;
    m->to_come -= i < m->receives;
  }
}

static int test(const ch_comm *comm, ch_transfer *t) {
  int done[2 * CH_RANKS], some;
  messages *m = &under_way[t->place];
  if (!m->left) return 1;
  MPI_Testsome(m->count, m->request, &some, done, status);
  for (int i = 0; i < some; i++) moved(comm, m, t, done[i], &status[i]);
  return !m->left;
}

static void wait(const ch_comm *comm, ch_transfer *t, ch_transfer_state until) {
  int done[2 * CH_RANKS], some;
  messages *m = &under_way[t->place];
  int count = until == CH_ARRIVED ? m->receives : m->count;
  const int *left = until == CH_ARRIVED ? &m->to_come : &m->left;
  while (*left) {
    MPI_Waitsome(count, m->request, &some, done, status);
    for (int i = 0; i < some; i++) moved(comm, m, t, done[i], &status[i]);
  }
  m->in_use = until == CH_ARRIVED;
}

int ch_mpi_join(int expected, const ch_comm **comm) {
  int provided, rank, size, length;
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  CH_TRY(ch_mpi_open());
  MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_size(world, &size);
  MPI_Comm_rank(world, &rank);
  MPI_Get_library_version(version, &length);
  version[strcspn(version, ",\n")] = 0;
  if (size != expected || size > CH_RANKS) {
    MPI_Finalize();
    if (size > CH_RANKS)
      return ch_error(CHOIR_ERROR_UNSUPPORTED, "%d processes: %d can work together at most", size, CH_RANKS);
    return ch_error(
        CHOIR_ERROR_IO,
        "the launcher started %d processes, and %s, which choir uses, found %d: start them with the launcher "
        "of that MPI",
        expected, version, size);
  }
  table = (ch_comm){.name = "mpi",
                    .rank = rank,
                    .size = size,
                    .stride = 1,
                    .piece = PIECE,
                    .worth = CH_COMM_WORTH,
                    .means = CH_COMM_MEANS,
                    .traffic = &traffic,
                    .watch = ch_watch_new(),
                    .begin = begin_transfer,
                    .test = test,
                    .wait = wait};
  *comm = &table;
  return CHOIR_OK;
}

void ch_mpi_leave(void) {
  ch_watch_leaving(&table);
  MPI_Finalize();
  ch_watch_free(table.watch);
}
