/* Files that are either whole or not there: written beside, fsynced, renamed. Directories: dir.h. */
#ifndef CH_BASE_FILE_H
#define CH_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

/* A file being written. Errors are remembered: write on, and ask ch_file_commit. */
typedef struct ch_file {
  int fd;
  char path[4096], temporary[4096];
  uint64_t bytes;  /* written so far */
  uint64_t needed; /* in all, for the message when the disk is full; 0: unknown */
  int error;       /* errno of the first failure, or 0 */
} ch_file;

/* Opens PATH.tmp-PID in the same directory. */
int ch_file_begin(ch_file *file, const char *path);
void ch_file_write(ch_file *file, const void *data, size_t bytes);
/* fsync, rename over `path`, fsync of the directory; or, when anything failed, removal and the error. */
int ch_file_commit(ch_file *file);
/* Removes what was written; nothing happened. */
void ch_file_abandon(ch_file *file);

/* All of that for one block of bytes. */
int ch_file_save(const char *path, const void *data, size_t bytes);

/* Reads a whole file, NUL-terminated; *data is malloc'd. Files above `limit` bytes are refused. */
int ch_file_read(const char *path, size_t limit, char **data, size_t *bytes);

/* Maps a whole file for reading. An empty file gives data "" and bytes 0. */
int ch_file_map(const char *path, const void **data, size_t *bytes);
void ch_file_unmap(const void *data, size_t bytes);

/* Part of a mapped file will not be read soon: its pages need not stay in memory. Never of anything but a mapped file.
 */
void ch_file_forget(const void *data, size_t bytes);

/* The error for a failed write to `path`: a full disk or quota says how much was needed. number: errno. */
int ch_file_error(int number, const char *path, uint64_t needed);

#endif
