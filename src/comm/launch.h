/* Processes that a launcher (mpirun, srun) has started. */
#ifndef CH_COMM_LAUNCH_H
#define CH_COMM_LAUNCH_H

#include "comm/comm.h"

/* The table of those that were started with this process; ch_comm_single when it was not started so. Once in a process.
 * CHOIR_ERROR_UNSUPPORTED: there is no MPI in this build. CHOIR_ERROR_IO: the processes did not find each other. */
int ch_comm_join(const ch_comm **comm);

/* The number of this process among those that the launcher has started on this machine; 0: it does not say. */
int ch_comm_local_rank(void);

/* Leaves it: of all ranks. */
void ch_comm_leave(const ch_comm *comm);

/* The table that MPI fills (mpi.c), where the launcher says that there are `expected` processes. */
int ch_mpi_join(int expected, const ch_comm **comm);
void ch_mpi_leave(void);

#endif
