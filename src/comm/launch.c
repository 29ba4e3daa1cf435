#include "comm/launch.h"

#include <limits.h>
#include <stdlib.h>

#include "base/error.h"

/* The max of the numbers in these environment variables of launchers, at least 0. */
static int said(const char *const names[], int count) {
  long max = 0;
  for (int i = 0; i < count; i++) {
    const char *value = getenv(names[i]);
    long number = value ? strtol(value, NULL, 10) : 0;
    if (number > max) max = number;
  }
  return max < INT_MAX ? (int)max : INT_MAX;
}
#define SAID(...) said((const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* Number of processes according to the launcher; 1 without a launcher. MPI itself is not queried, because its start is
 * slow and most runs have one process. The variables are those of Open MPI's mpirun; of MPICH's mpiexec and srun with
 * PMI; of srun with PMIx. */
static int launched(void) {
  int count = SAID("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS");
  return count > 1 ? count : 1;
}

int ch_comm_local_rank(void) { return SAID("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"); }

int ch_comm_join(const ch_comm **comm) {
  int count = launched();
  *comm = &ch_comm_single;
  if (count == 1) return CHOIR_OK;
#ifdef CHOIR_MPI
  return ch_mpi_join(count, comm);
#else
  return ch_error(CHOIR_ERROR_UNSUPPORTED,
                  "%d processes were started together, and this build of choir has no MPI: build it with "
                  "-DCHOIR_MPI=ON, or start one process",
                  count);
#endif
}

void ch_comm_leave(const ch_comm *comm) {
#ifdef CHOIR_MPI
  if (comm->size > 1) ch_mpi_leave();
#else
  (void)comm;
#endif
}
