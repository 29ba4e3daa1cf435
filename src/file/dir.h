/* Directories written atomically: readers see the complete directory or none. */
#ifndef CH_FILE_DIR_H
#define CH_FILE_DIR_H

#include <stddef.h>

#include "base/error.h"
#include "file/temporary.h"

/* A directory being written, for checkpoints: fill `temporary`, then commit. */
typedef struct ch_dir {
  char path[3072];      /* as given, without slashes at the end */
  char target[3072];    /* the final place: `path`, or the end of its symbolic links */
  char temporary[3200]; /* the place until ch_dir_commit */
  ch_temporary place;
} ch_dir;

/* Makes an empty directory in a temporary (temporary.h) beside `path`. The parent must exist. `path` may be there as an
 * empty directory, whose mode the new one takes, or as a link to such a one; CHOIR_ERROR_IO otherwise, and where it is
 * a mount point, which no rename can replace: before the work, not behind it. */
int ch_dir_begin(ch_dir *dir, const char *path);
/* Whether directories in `parent` can be made and renamed: CHOIR_ERROR_IO, or CHOIR_ERROR_FULL. */
int ch_dir_try(const char *parent);
/* fsyncs every file and the directory, renames it to its place, fsyncs the parent. */
int ch_dir_commit(ch_dir *dir);
/* The same, or after an error, whose code it gives back, nothing stays. */
int ch_dir_end(ch_dir *dir, int code);

/* Creates a directory and its parents; one that exists is fine. */
int ch_dir_make(const char *path);
/* Removes a directory with the files in it, subdirectories too; never follows links. Moved into a temporary first, so
 * that what stays after a crash is a leftover and never half a checkpoint. */
int ch_dir_remove(const char *path);

/* ---- the directory that a run works in: made where it was not there, and locked ---- */

#define CH_LOCK "lock"

/* Takes DIRECTORY/lock for this process; CHOIR_ERROR_BUSY names the process that holds it. The kernel lets go when the
 * process ends. */
int ch_lock_take(const char *directory, int *lock);
void ch_lock_release(int lock);

typedef struct ch_reservation {
  char path[4096];
  size_t stood;     /* length of the path's prefix that existed before */
  char inner[4160]; /* the inner directory, where the reservation made it; else "" */
  int makes_lock;   /* there was no lock before */
  int lock;         /* -1: not held */
  int fruitless;    /* set by the caller: what it found there is not for it, and nothing was written */
} ch_reservation;
#define CH_RESERVATION_NONE ((ch_reservation){.lock = -1})

/* Makes a directory, with its parents, in it another one, `inner` (NULL: none), and then locks it: a lock without the
 * inner directory is nobody's of choir's and is refused (CHOIR_ERROR_ARGUMENT), unless the directory is `known` to be
 * a run. After an error nothing is held, and what was made is gone. */
int ch_reservation_take(ch_reservation *reservation, const char *path, const char *inner, int known);
/* Lets go. failed: a run that never came to be leaves no directory that was not there before it: what was made goes,
 * unless there is a file in it; and with `fruitless` the lock and the inner directory go where they were made. */
void ch_reservation_release(ch_reservation *reservation, int failed);

#endif
