/* Directories that are either whole or not there. */
#ifndef CH_FILE_DIR_H
#define CH_FILE_DIR_H

#include "file/temporary.h"

/* A directory being written, for checkpoints: fill `temporary`, then commit. */
typedef struct ch_dir {
  char path[3072];      /* as given, without slashes at the end */
  char target[3072];    /* where it goes: `path`, or what that links to */
  char temporary[3200]; /* where it is until then */
  ch_temporary place;
} ch_dir;

/* Makes an empty directory in a temporary (temporary.h) beside `path`. The parent must exist. `path` may be there as an
 * empty directory, whose mode the new one takes, or as a link to such a one; CHOIR_ERROR_IO otherwise, and where it is
 * a mount point, which no rename can replace: before the work, not behind it. */
int ch_dir_begin(ch_dir *dir, const char *path);
/* fsyncs every file and the directory, renames it to its place, fsyncs the parent. */
int ch_dir_commit(ch_dir *dir);
void ch_dir_abandon(ch_dir *dir);

/* Creates a directory and its parents; one that exists is fine. */
int ch_dir_make(const char *path);
/* Removes a directory with the files in it, subdirectories too; never follows links. Moved into a temporary first, so
 * that what stays after a crash is a leftover and never half a checkpoint. */
int ch_dir_remove(const char *path);

#endif
