/* MPI without its header: the library is loaded at run time if a launcher started several processes. Two ABIs cover
 * nearly all MPIs: Open MPI's and MPICH's (shared by Intel MPI, MVAPICH and Cray MPI since 2014). They differ in
 * handles (a pointer or an int; both are passed in one register), in the array sizes of requests and statuses, and in
 * the handles of MPI_COMM_WORLD and MPI_BYTE. */
#include "comm/mpi_any.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/comm.h"

enum { STATUS = 5 }; /* ints per MPICH status */

static struct {
  int mpich;
  intptr_t world, byte;
  int (*init_thread)(int *, char ***, int, int *);
  int (*finalize)(void);
  int (*abort)(intptr_t, int);
  int (*comm_size)(intptr_t, int *);
  int (*comm_rank)(intptr_t, int *);
  int (*get_library_version)(char *, int *);
  int (*isend)(const void *, int, intptr_t, int, int, intptr_t, void *);
  int (*irecv)(void *, int, intptr_t, int, int, intptr_t, void *);
  int (*testsome)(int, void *, int *, int *, void *);
  int (*waitsome)(int, void *, int *, int *, void *);
  int (*get_count)(const void *, intptr_t, int *);
} mpi;

/* Nonzero if the library has all functions that mpi.c calls. */
static int find(void *library) {
  const struct {
    const char *name;
    void *to;
  } wanted[] = {{"MPI_Init_thread", &mpi.init_thread},
                {"MPI_Finalize", &mpi.finalize},
                {"MPI_Abort", &mpi.abort},
                {"MPI_Comm_size", &mpi.comm_size},
                {"MPI_Comm_rank", &mpi.comm_rank},
                {"MPI_Get_library_version", &mpi.get_library_version},
                {"MPI_Isend", &mpi.isend},
                {"MPI_Irecv", &mpi.irecv},
                {"MPI_Testsome", &mpi.testsome},
                {"MPI_Waitsome", &mpi.waitsome},
                {"MPI_Get_count", &mpi.get_count}};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    void *at = dlsym(library, wanted[i].name);
    if (!at) return 0;
    memcpy(wanted[i].to, &at, sizeof at);
  }
  void *world = dlsym(library, "ompi_mpi_comm_world"), *byte = dlsym(library, "ompi_mpi_byte");
  mpi.mpich = !world || !byte;
  mpi.world = mpi.mpich ? 0x44000000 : (intptr_t)world; /* constants of MPICH's mpi.h, fixed by its ABI */
  mpi.byte = mpi.mpich ? 0x4c00010d : (intptr_t)byte;
  return 1;
}

int ch_mpi_open(void) {
  static const char *const names[][2] = {{"libmpi.so.40", "libmpi.so.80"}, {"libmpi.so.12", "libmpich.so.12"}};
  int first = !getenv("OMPI_COMM_WORLD_SIZE") && getenv("PMI_SIZE");
  for (int i = 0; i < 4; i++) {
    void *library =
        dlopen(names[i < 2 ? first : !first][i % 2], RTLD_NOW | RTLD_GLOBAL); /* MPI's plug-ins need RTLD_GLOBAL */
    if (library && find(library)) return CHOIR_OK;
  }
  return ch_error(CHOIR_ERROR_UNSUPPORTED,
                  "several processes were started together, and no MPI was found (libmpi.so.40 of Open MPI, "
                  "libmpi.so.12 or libmpich.so.12 of MPICH): install the one whose launcher this is, or name its "
                  "folder in LD_LIBRARY_PATH");
}

int MPI_Init_thread(int *count, char ***words, int wanted, int *provided) {
  return mpi.init_thread(count, words, wanted, provided);
}
int MPI_Finalize(void) { return mpi.finalize(); }
int MPI_Abort(MPI_Comm comm, int code) { return mpi.abort(comm + mpi.world, code); }
int MPI_Comm_size(MPI_Comm comm, int *size) { return mpi.comm_size(comm + mpi.world, size); }
int MPI_Comm_rank(MPI_Comm comm, int *rank) { return mpi.comm_rank(comm + mpi.world, rank); }
int MPI_Get_library_version(char *version, int *length) { return mpi.get_library_version(version, length); }

int MPI_Isend(const void *at, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
  *request = 0; /* clears the upper half, which the int does not set */
  return mpi.isend(at, count, type + mpi.byte, to, tag, comm + mpi.world, request);
}

int MPI_Irecv(void *at, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
  *request = 0;
  return mpi.irecv(at, count, type + mpi.byte, from, tag, comm + mpi.world, request);
}

/* Converts arrays: MPICH's requests and statuses are narrower than this header's. */
static int narrow(int (*call)(int, void *, int *, int *, void *), int count, MPI_Request *request, int *some, int *done,
                  MPI_Status *status) {
  static int narrow_request[2 * CH_RANKS], narrow_status[2 * CH_RANKS][STATUS];
  for (int i = 0; i < count; i++) memcpy(&narrow_request[i], &request[i], sizeof *narrow_request);
  int code = call(count, narrow_request, some, done, narrow_status);
  for (int i = 0; i < count; i++) memcpy(&request[i], &narrow_request[i], sizeof *narrow_request);
  for (int i = 0; i < *some; i++) memcpy(&status[i], narrow_status[i], sizeof *narrow_status);
  return code;
}

int MPI_Testsome(int count, MPI_Request *request, int *some, int *done, MPI_Status *status) {
  if (mpi.mpich) return narrow(mpi.testsome, count, request, some, done, status);
  return mpi.testsome(count, request, some, done, status);
}

int MPI_Waitsome(int count, MPI_Request *request, int *some, int *done, MPI_Status *status) {
  if (mpi.mpich) return narrow(mpi.waitsome, count, request, some, done, status);
  return mpi.waitsome(count, request, some, done, status);
}

int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count) {
  return mpi.get_count(status, type + mpi.byte, count);
}
