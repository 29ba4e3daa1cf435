/* A file of lines that goes on in memory while there is no room for it on the disk. What is in the file is always the
 * beginning of what was added. */
#ifndef CH_TRAIN_LOG_H
#define CH_TRAIN_LOG_H

#include <stddef.h>
#include <stdint.h>

typedef struct ch_log {
  int fd; /* -1: closed, and what is added is forgotten */
  char path[4096];
  int64_t bytes; /* of the file */
  char *waiting; /* what could not be written yet */
  size_t size, room;
  int error; /* errno of the last attempt, 0: everything is written; ENOMEM: lines are lost */
} ch_log;

/* Opens or makes a file, as long as it is less what stands behind its last line end, where a process was killed while
 * it wrote. */
int ch_log_open(ch_log *log, const char *path);

/* Cuts it back to `bytes`, which must be the end of a line; a shorter file is an error. */
int ch_log_cut(ch_log *log, int64_t bytes);
void ch_log_close(ch_log *log);

/* Adds whole lines and writes what waits. Allocates nothing while there is room. */
void ch_log_add(ch_log *log, const char *lines, size_t size);

/* Tries to write what waits: 0, or the errno. */
int ch_log_flush(ch_log *log);

/* Whether an errno says that there is no room for now, and may be later. */
int ch_log_is_full(int number);

/* Everything onto the disk. CHOIR_ERROR_FULL: it waits; CHOIR_ERROR_IO. */
int ch_log_sync(ch_log *log);

#endif
