#include "comm/launch.h"

#include <limits.h>
#include <stdlib.h>

#include "base/error.h"

/* How many processes the launcher says that it has started; 1 when there is none. MPI itself is not asked: to start it
 * takes time, and most processes are alone. */
static int launched(void) {
  /* mpirun of Open MPI; mpiexec of MPICH, and srun with PMI; srun with PMIx */
  static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *value = getenv(names[i]);
    long count = value ? strtol(value, NULL, 10) : 0;
    if (count > 1) return count < INT_MAX ? (int)count : INT_MAX;
  }
  return 1;
}

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
