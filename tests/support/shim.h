/* The preloaded library and those who run programs under it agree on these names and numbers. */
#ifndef CH_TESTS_FAULTS_SHIM_H
#define CH_TESTS_FAULTS_SHIM_H

#include <stdint.h>

/* Classes of calls; each counts and fails on its own. A new row here and in `shim_names` is a new class. */
typedef enum {
  SHIM_WRITE,
  SHIM_FSYNC,
  SHIM_RENAME,
  SHIM_OPEN,
  SHIM_MKDIR,
  SHIM_UNLINK, /* rmdir and remove too */
  SHIM_FTRUNCATE,
  SHIM_MMAP,
  SHIM_MALLOC, /* calloc, realloc, aligned_alloc, posix_memalign too */
  SHIM_READ,
  SHIM_FLOCK,
  SHIM_THREAD,
  SHIM_PREAD,
  SHIM_READDIR,
  SHIM_ACCESS,
  SHIM_STAT, /* lstat, fstat, fstatat too */
  SHIM_CLASSES
} shim_class;

#define SHIM_NAMES                                                                                                   \
  {                                                                                                                  \
    "write", "fsync", "rename", "open", "mkdir", "unlink", "ftruncate", "mmap", "malloc", "read", "flock", "thread", \
        "pread", "readdir", "access", "stat"                                                                         \
  }

/* Environment:
 * FAULT=CLASS:ERRNO:FIRST[:COUNT]  calls FIRST, FIRST+1, ... (from 1; COUNT of them, 1 if not given) fail with that
 *                                  errno, a number; 0: the process is killed in the place of the call.
 * FAULT_DIRECTORIES=1              with CLASS fsync or rename: of directories only.
 * FAULT_COUNTS=FILE                a file of a shim_counts, shared and up to date even when the process is killed.
 * FAULT_TRACE=FILE, FAULT_ROOT=DIR every change below DIR (absolute), as a shim_record and its bytes, in order.
 * Counted is what the program does between the beginning of main and its end. */
typedef struct shim_counts {
  uint64_t calls[SHIM_CLASSES], failed;
  char caller[64]; /* file name of the program or library whose call failed: the first behind the C and C++ libraries */
} shim_counts;

typedef enum {
  SHIM_T_WRITE,
  SHIM_T_TRUNCATE,
  SHIM_T_CREATE,
  SHIM_T_SYNC,
  SHIM_T_SYNC_DIRECTORY,
  SHIM_T_RENAME,
  SHIM_T_MKDIR,
  SHIM_T_UNLINK,
  SHIM_T_RMDIR
} shim_change;

/* Followed by the path (relative to the root), the second path of a rename, and the bytes of a write. `file` is the
 * inode, which a rename does not change. */
typedef struct shim_record {
  uint32_t change, path_bytes, path2_bytes, unused;
  uint64_t file, offset, bytes;
} shim_record;

#endif
