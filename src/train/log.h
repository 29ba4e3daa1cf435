/* A file of lines that is continued in memory while the disk is full. The file is always a prefix of the added
 * lines. */
#ifndef CH_TRAIN_LOG_H
#define CH_TRAIN_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"

typedef struct ch_log {
  int fd; /* -1: closed; added lines are discarded */
  char path[4096];
  int64_t bytes;     /* size of the file */
  ch_buffer waiting; /* lines that could not be written yet */
  int error;         /* errno of the last attempt, 0: everything is written; ENOMEM: lines are lost */
} ch_log;

/* How much of a file is kept: a number of bytes, or all complete lines (a killed process may leave an incomplete
 * last one). */
enum { CH_LOG_LINES = -1 };

/* Checks that ch_log_open can open the file, before anything of a run is changed: the file has at least `bytes`
 * bytes, with a line end there. CHOIR_ERROR_FORMAT, CHOIR_ERROR_IO. */
int ch_log_check(const char *path, int64_t bytes);

/* Opens or creates a file and truncates it to `bytes`; a file that ch_log_check refuses is not truncated. */
int ch_log_open(ch_log *log, const char *path, int64_t bytes);
void ch_log_close(ch_log *log);

/* Adds complete lines and writes the waiting ones. Allocates nothing while the buffer has space. */
void ch_log_add(ch_log *log, const char *lines, size_t size);

/* Tries to write the waiting lines: 0, or the errno. */
int ch_log_flush(ch_log *log);

/* Writes and fsyncs all lines. CHOIR_ERROR_FULL: some still wait; CHOIR_ERROR_IO. */
int ch_log_sync(ch_log *log);

/* ---- a full disk ----
 * A run continues in memory for a limited time, reports this once, and saves when space is free again. */

typedef struct ch_disk_wait {
  double limit;       /* maximum of seconds with a full disk */
  double full_since;  /* seconds on the clock; 0: the disk has space */
  double next_try;    /* seconds on the clock at which a failed write is tried again */
  int given_up;       /* the limit is reached */
  int64_t saved_step; /* of the newest checkpoint */
  char why[512];      /* message of the last failed write */
} ch_disk_wait;

/* Records that a checkpoint or another file could not be written because the disk is full; the attempt took
 * `seconds`. Keeps the thread's error message. */
void ch_room_refused(ch_disk_wait *wait, double seconds);

/* Called after every step: detects that the disk became full or has space again, and whether the limit is reached.
 * pending: a file still has to be written. Returns an error of the log that waiting does not fix. */
int ch_disk_wait_watch(ch_disk_wait *wait, ch_log *log, int pending);

/* Whether it is time to try a failed write again: at most a twentieth of the time is spent on attempts. */
int ch_room_retry_due(const ch_disk_wait *wait);

double ch_disk_wait_seconds_left(const ch_disk_wait *wait);

/* The error at the end of a run that could not be saved: CHOIR_ERROR_FULL. */
int ch_disk_wait_error(const ch_disk_wait *wait, int64_t step, int64_t steps);

#endif
