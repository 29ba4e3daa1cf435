/* Preloaded into programs under MPI: message number SHORT_MESSAGE that this process sends lacks its last byte; with
 * STOPS_AT_END set it stops where it should leave. */
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
  static int sent;
  const char *which = getenv("SHORT_MESSAGE");
  int lacks = which && ++sent == atoi(which);
  return PMPI_Isend(data, count - lacks, type, to, tag, comm, request);
}

int MPI_Finalize(void) {
  if (getenv("STOPS_AT_END")) raise(SIGSTOP);
  return PMPI_Finalize();
}
