/* A file of lines that continues in memory while the disk is full. The file is always a prefix of the added lines. */
#ifndef CH_TRAIN_LOG_H
#define CH_TRAIN_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"

typedef struct ch_log {
  int fd; /* -1: closed, and what is added is forgotten */
  char path[4096];
  int64_t bytes;     /* of the file */
  ch_buffer waiting; /* what could not be written yet */
  int error;         /* errno of the last attempt, 0: everything is written; ENOMEM: lines are lost */
} ch_log;

/* How much of a file stays: so many bytes, or its whole lines without the half one that a killed process left. */
enum { CH_LOG_LINES = -1 };

/* Whether a file is one that ch_log_open takes, before anything of a run is changed: at least `bytes` long, with a line
 * end there. CHOIR_ERROR_FORMAT, CHOIR_ERROR_IO. */
int ch_log_check(const char *path, int64_t bytes);

/* Opens or makes a file, and cuts off what is behind `bytes`; of one that ch_log_check refuses nothing is cut off. */
int ch_log_open(ch_log *log, const char *path, int64_t bytes);
void ch_log_close(ch_log *log);

/* Adds whole lines and writes what waits. Allocates nothing while there is room. */
void ch_log_add(ch_log *log, const char *lines, size_t size);

/* Tries to write what waits: 0, or the errno. */
int ch_log_flush(ch_log *log);

/* Everything onto the disk. CHOIR_ERROR_FULL: it waits; CHOIR_ERROR_IO. */
int ch_log_sync(ch_log *log);

/* ---- a disk without room ----
 * A run goes on in memory for a while, says so once, and saves when there is room again. */

typedef struct ch_disk_wait {
  double limit;       /* seconds without room, at most */
  double full_since;  /* on the clock; 0: there is room */
  double next_try;    /* of what was refused, on the clock */
  int given_up;       /* the limit is reached */
  int64_t saved_step; /* of the newest checkpoint */
  char why[512];      /* message of the write that failed last */
} ch_disk_wait;

/* Notes a checkpoint, or another file, that found no room on the disk; the attempt took so many seconds. Keeps the
 * thread's message. */
void ch_room_refused(ch_disk_wait *wait, double seconds);

/* After every step: notices when room is gone or back, and whether the limit is reached. pending: what was refused is
 * not written yet. An error of the log that waiting does not fix is returned. */
int ch_disk_wait_watch(ch_disk_wait *wait, ch_log *log, int pending);

/* Whether it is time to try again what was refused: at most a twentieth of the time goes into trying. */
int ch_room_retry_due(const ch_disk_wait *wait);

double ch_disk_wait_seconds_left(const ch_disk_wait *wait);

/* The error at the end of a run that could not be saved: CHOIR_ERROR_FULL. */
int ch_disk_wait_error(const ch_disk_wait *wait, int64_t step, int64_t steps);

#endif
