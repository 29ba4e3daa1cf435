/* Processes started by a launcher (mpirun, srun). */
#ifndef CH_COMM_LAUNCH_H
#define CH_COMM_LAUNCH_H

#include "comm/comm.h"

/* The table of the launcher's processes; ch_comm_single without a launcher. Call once per process.
 * CHOIR_ERROR_UNSUPPORTED: the build has no MPI. CHOIR_ERROR_IO: the processes could not connect. */
int ch_comm_join(const ch_comm **comm);

/* The launcher's local rank on this machine; 0 if unknown. */
int ch_comm_local_rank(void);

/* Leaves the table; collective. */
void ch_comm_leave(const ch_comm *comm);

/* The table of MPI (mpi.c); the launcher reports `expected` processes. */
int ch_mpi_join(int expected, const ch_comm **comm);
void ch_mpi_leave(void);

#endif
