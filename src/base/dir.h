/* Directories that are either whole or not there, and the lock of a run. */
#ifndef CH_BASE_DIR_H
#define CH_BASE_DIR_H

#include "base/error.h"

/* A directory being written, for checkpoints: fill `temporary`, then commit. */
typedef struct ch_dir {
  char path[3072], temporary[3200];
} ch_dir;

/* Makes PATH.tmp-PID, and removes leftovers of earlier processes (PATH.tmp-* whose process is gone). The parent must
 * exist. */
int ch_dir_begin(ch_dir *dir, const char *path);
/* fsyncs every file and the directory, renames it to `path` (which must not exist or be an empty directory), fsyncs the
 * parent. */
int ch_dir_commit(ch_dir *dir);
void ch_dir_abandon(ch_dir *dir);

/* Creates a directory and its parents; one that exists is fine. */
int ch_dir_make(const char *path);
/* Removes a directory with the files in it, subdirectories too; never follows links. Renamed aside first, so that what
 * stays after a crash is a leftover and never half a checkpoint. */
int ch_dir_remove(const char *path);

/* Removes what killed processes left in a directory: entries NAME.tmp-PID, files or directories, of no living process.
 */
void ch_dir_clean(const char *directory);

/* Makes a rename or a new file in the directory that holds `path` outlive a crash of the machine. */
int ch_dir_sync_parent(const char *path);

/* Takes DIRECTORY/lock for this process; CHOIR_ERROR_BUSY names the process that holds it. The kernel lets go when the
 * process ends. */
int ch_lock_take(const char *directory, int *lock);
void ch_lock_release(int lock);

#endif
