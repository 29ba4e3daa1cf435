/* Processes that a launcher (mpirun, srun) has started. */
#ifndef CH_COMM_LAUNCH_H
#define CH_COMM_LAUNCH_H

#include "comm/comm.h"

/* The table of the processes that the launcher started; ch_comm_single without a launcher. To be called once per
 * process. CHOIR_ERROR_UNSUPPORTED: the build has no MPI. CHOIR_ERROR_IO: the processes did not find each other. */
int ch_comm_join(const ch_comm **comm);

/* The process's number on its machine, as the launcher gives it; 0 if the launcher gives none. */
int ch_comm_local_rank(void);

/* Leaves the table; collective. */
void ch_comm_leave(const ch_comm *comm);

/* The table that MPI fills (mpi.c), where the launcher says that there are `expected` processes. */
int ch_mpi_join(int expected, const ch_comm **comm);
void ch_mpi_leave(void);

#endif
