/* The parts of mpi.h that mpi.c needs, for any MPI found at run time (CHOIR_MPI=ANY). Handles have the width of the
 * widest ABI. There is one communicator and one type, which the functions insert. */
#ifndef CH_COMM_MPI_ANY_H
#define CH_COMM_MPI_ANY_H

#include <stdint.h>

typedef intptr_t MPI_Comm, MPI_Datatype, MPI_Request;
typedef struct {
  int64_t words[3];
} MPI_Status;

enum { MPI_COMM_WORLD, MPI_BYTE = 0, MPI_THREAD_FUNNELED, MPI_MAX_LIBRARY_VERSION_STRING = 8192 };

#define MPI_Init_thread ch_mpi_init_thread
#define MPI_Finalize ch_mpi_finalize
#define MPI_Abort ch_mpi_abort
#define MPI_Comm_size ch_mpi_comm_size
#define MPI_Comm_rank ch_mpi_comm_rank
#define MPI_Get_library_version ch_mpi_get_library_version
#define MPI_Isend ch_mpi_isend
#define MPI_Irecv ch_mpi_irecv
#define MPI_Testsome ch_mpi_testsome
#define MPI_Waitsome ch_mpi_waitsome
#define MPI_Get_count ch_mpi_get_count

/* Loads an MPI library, preferring the launcher's ABI. CHOIR_ERROR_UNSUPPORTED: none found. */
int ch_mpi_open(void);

int MPI_Init_thread(int *count, char ***words, int wanted, int *provided);
int MPI_Finalize(void);
int MPI_Abort(MPI_Comm comm, int code);
int MPI_Comm_size(MPI_Comm comm, int *size);
int MPI_Comm_rank(MPI_Comm comm, int *rank);
int MPI_Get_library_version(char *version, int *length);
int MPI_Isend(const void *at, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request);
int MPI_Irecv(void *at, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request);
int MPI_Testsome(int count, MPI_Request *request, int *some, int *done, MPI_Status *status);
int MPI_Waitsome(int count, MPI_Request *request, int *some, int *done, MPI_Status *status);
int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count);

#endif
