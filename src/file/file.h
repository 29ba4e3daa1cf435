/* Files that are either whole or not there: written beside, fsynced, renamed. Directories: dir.h. */
#ifndef CH_FILE_FILE_H
#define CH_FILE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "file/temporary.h"

/* A file being written. Errors are remembered: write on, and ask ch_file_commit. */
typedef struct ch_file {
  int fd;
  char path[4096];      /* as given */
  char target[4096];    /* the final place: `path`, or the end of its symbolic links */
  char temporary[4224]; /* the place until ch_file_commit */
  ch_temporary place;
  uint64_t bytes;  /* written so far */
  uint64_t needed; /* bytes of the whole file, for the message about a full disk; 0: unknown */
  int error;       /* errno of the first failure, or 0 */
} ch_file;

/* Opens a temporary in the same directory (temporary.h). A file that is there already lends its mode and its owner, a
 * symbolic link stays and its target is replaced. Inside a temporary directory the file is written in place: nobody
 * looks there. */
int ch_file_begin(ch_file *file, const char *path);
void ch_file_write(ch_file *file, const void *data, size_t bytes);
/* Bytes that were written already, anew; `offset` counts from the file's begin. */
void ch_file_rewrite(ch_file *file, uint64_t offset, const void *data, size_t bytes);
/* fsync: what is written has its room on the disk. After an error the file is abandoned. */
int ch_file_flush(ch_file *file);
/* fsync, rename over `path`, fsync of the directory; or, when anything failed, removal and the error. */
int ch_file_commit(ch_file *file);
/* Removes the temporary file, where there is one; `path` is as it was before. */
void ch_file_abandon(ch_file *file);

/* Writes a file durably from one block of bytes: begin, write, commit. */
int ch_file_save(const char *path, const void *data, size_t bytes);

/* Reads a whole file, NUL-terminated; *data is malloc'd. Files above `limit` bytes are refused. */
int ch_file_read(const char *path, size_t limit, char **data, size_t *bytes);

/* Maps a whole file for reading, or where its file system maps none reads it into memory, with a notice. An empty file
 * gives data "" and bytes 0. */
int ch_file_map(const char *path, const void **data, size_t *bytes);
void ch_file_unmap(const void *data, size_t bytes);

/* Part of a mapped file will not be read soon: its pages need not stay in memory. Never of anything but a mapped file.
 */
void ch_file_forget(const void *data, size_t bytes);

#endif
