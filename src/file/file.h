/* Files that are either complete or absent: written under a temporary name, fsynced, renamed. Directories: dir.h. */
#ifndef CH_FILE_FILE_H
#define CH_FILE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "file/temporary.h"

/* A file being written. Errors are remembered: keep writing, and check ch_file_commit. */
typedef struct ch_file {
  int fd;
  char path[4096];      /* path as given */
  char target[4096];    /* final path: `path` with symbolic links resolved */
  char temporary[4224]; /* path until ch_file_commit */
  ch_temporary place;
  uint64_t bytes;  /* written so far */
  uint64_t needed; /* size of the complete file, for the message about a full disk; 0: unknown */
  int error;       /* errno of the first failure, or 0 */
} ch_file;

/* Opens a temporary file in the same directory (temporary.h). An existing file's mode and owner are kept; of a
 * symbolic link the target is replaced. Inside a staging directory the file is written in place, because no other
 * process reads it there. */
int ch_file_begin(ch_file *file, const char *path);
void ch_file_write(ch_file *file, const void *data, size_t bytes);
/* Overwrites bytes that were already written; `offset` counts from the beginning of the file. */
void ch_file_rewrite(ch_file *file, uint64_t offset, const void *data, size_t bytes);
/* fsync: the written bytes have their space on the disk. After an error the file is abandoned. */
int ch_file_flush(ch_file *file);
/* fsync, rename to the final path, fsync of the directory; or, after any error, removes the temporary file and
 * returns the error. */
int ch_file_commit(ch_file *file);
/* Removes the temporary file, if any; `path` is unchanged. */
void ch_file_abandon(ch_file *file);

/* Writes a file durably from one block of bytes: begin, write, commit. */
int ch_file_save(const char *path, const void *data, size_t bytes);

/* Reads a whole file, NUL-terminated; *data is malloc'd. Files above `limit` bytes are refused. */
int ch_file_read(const char *path, size_t limit, char **data, size_t *bytes);

/* Maps a whole file for reading, or, if its file system does not support this, reads it into memory, with a notice.
 * An empty file gives data "" and bytes 0. */
int ch_file_map(const char *path, const void **data, size_t *bytes);
void ch_file_unmap(const void *data, size_t bytes);

/* Drops pages of a mapped file that will not be read soon from memory. For mapped files only. */
void ch_file_forget(const void *data, size_t bytes);

#endif
