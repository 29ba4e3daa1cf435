/* Directories written atomically: readers see the complete directory or none. */
#ifndef CH_FILE_DIR_H
#define CH_FILE_DIR_H

#include <stddef.h>

#include "base/error.h"
#include "file/temporary.h"

/* A directory being written, such as a checkpoint: fill `temporary`, then commit. */
typedef struct ch_dir {
  char path[3072];      /* as the caller gave it, without trailing slashes */
  char target[3072];    /* final path: `path` with symbolic links resolved */
  char temporary[3200]; /* path until ch_dir_commit */
  ch_temporary place;
} ch_dir;

/* Creates an empty staging directory (temporary.h) next to `path`. The parent must exist. `path` may be an empty
 * directory, whose mode is kept, or a link to one; CHOIR_ERROR_IO otherwise, and if it is a mount point, which no
 * rename can replace: this is detected before the work. */
int ch_dir_begin(ch_dir *dir, const char *path);
/* Checks that directories in `parent` can be created and renamed: CHOIR_ERROR_IO, or CHOIR_ERROR_FULL. */
int ch_dir_try(const char *parent);
/* fsyncs every file and the directory, renames it to `target`, fsyncs the parent. */
int ch_dir_commit(ch_dir *dir);
/* With code CHOIR_OK: ch_dir_commit. Otherwise removes the staging directory and returns the code. */
int ch_dir_end(ch_dir *dir, int code);

/* Creates a directory and its parents; existing ones are not an error. */
int ch_dir_make(const char *path);
/* Removes a directory with its files and subdirectories; never follows links. The directory is first moved into a
 * staging directory, so that a crash leaves a leftover and never an incomplete checkpoint. */
int ch_dir_remove(const char *path);

/* ---- the directory of a run: created if absent, and locked ---- */

#define CH_LOCK "lock"

/* Locks DIRECTORY/lock for this process; CHOIR_ERROR_BUSY names the process that holds it. The kernel releases the
 * lock when the process ends. */
int ch_lock_take(const char *directory, int *lock);
void ch_lock_release(int lock);

typedef struct ch_reservation {
  char path[4096];
  size_t stood;     /* length of the prefix of the path that existed before */
  char inner[4160]; /* the inner directory, if the reservation created it; else "" */
  int makes_lock;   /* the reservation created the lock */
  int lock;         /* -1: not held */
  int fruitless;    /* set by the caller: the directory belongs to something else, and nothing was written */
} ch_reservation;
#define CH_RESERVATION_NONE ((ch_reservation){.lock = -1})

/* Creates a directory and its parents, creates `inner` in it (NULL: none), and then locks it. A lock without the
 * inner directory was not made by choir and is refused (CHOIR_ERROR_ARGUMENT), unless the directory is `known` to be a
 * run. After an error no lock is held, and everything created is removed. */
int ch_reservation_take(ch_reservation *reservation, const char *path, const char *inner, int known);
/* Releases the lock. failed: removes the directories that the reservation created, unless they contain a file; with
 * `fruitless` also the lock and the inner directory, if it created them. */
void ch_reservation_release(ch_reservation *reservation, int failed);

#endif
