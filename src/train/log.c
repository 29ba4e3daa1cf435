#include "train/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/machine.h"
#include "file/file.h"
#include "file/path_status.h"

/* Reads exactly `size` bytes, or returns an error: an unreadable file is never treated as absent. */
static int read_at(int fd, const char *path, char *data, size_t size, int64_t offset) {
  for (size_t done = 0; done < size;) {
    ssize_t n = pread(fd, data + done, size - done, offset + (int64_t)done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ch_error_errno("%s: cannot be read; nothing of it was cut off", path);
    if (n == 0) return ch_error(CHOIR_ERROR_IO, "%s: became shorter while it was read; nothing was cut off", path);
    done += (size_t)n;
  }
  return CHOIR_OK;
}

/* The offset after the last complete line; 0: the file has none. */
static int end_of_lines(int fd, const char *path, int64_t bytes, int64_t *end) {
  enum { PIECE = 4096 };
  char piece[PIECE];
  for (*end = 0; bytes > 0 && !*end;) {
    int64_t begin = bytes > PIECE ? bytes - PIECE : 0;
    CH_TRY(read_at(fd, path, piece, (size_t)(bytes - begin), begin));
    const char *newline = memrchr(piece, '\n', (size_t)(bytes - begin));
    if (newline) *end = begin + (newline - piece) + 1;
    bytes = begin;
  }
  return CHOIR_OK;
}

/* How much of a file of `size` bytes is kept: `*bytes`, which must be the end of a line; if it is CH_LOG_LINES, all
 * complete lines. */
static int check_length(int fd, const char *path, int64_t size, int64_t *bytes) {
  char last = '\n';
  if (*bytes == CH_LOG_LINES) return end_of_lines(fd, path, size, bytes);
  if (size < *bytes)
    return ch_error(CHOIR_ERROR_FORMAT,
                    "%s: %" PRId64 " bytes, but the checkpoint was made when it had %" PRId64
                    "; put the file back, or train into another directory",
                    path, size, *bytes);
  if (*bytes) CH_TRY(read_at(fd, path, &last, 1, *bytes - 1));
  if (last == '\n') return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT,
                  "%s: no line ends at byte %" PRId64
                  ", where the checkpoint was made; put the file back, or train into another directory",
                  path, *bytes);
}

static int size_of(int fd, const char *path, int64_t *size) {
  struct stat status;
  if (fstat(fd, &status)) return ch_error_errno("%s: cannot read the length of the file", path);
  *size = status.st_size;
  return CHOIR_OK;
}

int ch_log_check(const char *path, int64_t bytes) {
  int there, fd;
  int64_t size = 0;
  CH_TRY(ch_regular_exists(path, &there));
  if (!there) return bytes > 0 ? check_length(-1, path, 0, &bytes) : CHOIR_OK;
  CH_TRY(ch_open_regular(path, O_RDONLY, &fd));
  int code = size_of(fd, path, &size);
  if (!code) code = check_length(fd, path, size, &bytes);
  close(fd);
  return code;
}

/* A log with further hard links also belongs to another run (a copy by `cp -al`) and is not changed: its first
 * `bytes` bytes are copied to a new file of this run. */
static int leave_others(ch_log *log, int64_t bytes) {
  char piece[4096];
  ch_file file;
  int code = ch_file_begin(&file, log->path);
  for (int64_t at = 0, n; at < bytes && !code; at += n) {
    n = bytes - at < (int64_t)sizeof piece ? bytes - at : (int64_t)sizeof piece;
    code = read_at(log->fd, log->path, piece, (size_t)n, at);
    if (!code) ch_file_write(&file, piece, (size_t)n);
  }
  if (code) return ch_file_abandon(&file), code;
  CH_TRY(ch_file_commit(&file));
  close(log->fd);
  return ch_open_regular(log->path, O_RDWR | O_APPEND, &log->fd);
}

static int begin_log(ch_log *log, int there, int64_t bytes) {
  int64_t size;
  int others;
  if (!there) CH_TRY(ch_sync_parent(log->path)); /* checkpoints rely on the file's existence after a loss of power */
  CH_TRY(size_of(log->fd, log->path, &size));
  CH_TRY(check_length(log->fd, log->path, size, &bytes));
  CH_TRY(ch_has_other_names(log->fd, log->path, &others));
  log->bytes = bytes;
  if (others) return leave_others(log, bytes);
  if (bytes == size || !ftruncate(log->fd, bytes)) return CHOIR_OK;
  return ch_error_errno("%s: cannot cut back to %" PRId64 " bytes", log->path, bytes);
}

int ch_log_open(ch_log *log, const char *path, int64_t bytes) {
  int there;
  *log = (ch_log){.fd = -1};
  if (snprintf(log->path, sizeof log->path, "%s", path) >= (int)sizeof log->path)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", path);
  CH_TRY(ch_regular_exists(path, &there));
  CH_TRY(ch_open_regular(path, O_RDWR | O_CREAT | O_APPEND, &log->fd));
  int code = begin_log(log, there, bytes);
  if (code) ch_log_close(log);
  return code;
}

void ch_log_close(ch_log *log) {
  if (log->fd >= 0) close(log->fd);
  free(log->waiting.data);
  *log = (ch_log){.fd = -1};
}

/* Writes until the data or the disk's space ends; returns the number of bytes written. */
static size_t write_some(ch_log *log, const char *data, size_t size) {
  size_t done = 0;
  log->error = 0;
  while (done < size && !log->error) {
    ssize_t n = write(log->fd, data + done, size - done);
    if (n > 0)
      done += (size_t)n;
    else if (n == 0 || errno != EINTR)
      log->error = n ? errno : ENOSPC;
  }
  log->bytes += (int64_t)done;
  return done;
}

int ch_log_flush(ch_log *log) {
  ch_buffer *b = &log->waiting;
  if (!b->size || log->error == ENOMEM) return log->error;
  size_t done = write_some(log, b->data, b->size);
  b->size -= done;
  memmove(b->data, b->data + done, b->size);
  return log->error;
}

void ch_log_add(ch_log *log, const char *lines, size_t size) {
  size_t done = 0;
  if (log->fd < 0 || log->error == ENOMEM) return;
  if (!ch_log_flush(log)) done = write_some(log, lines, size);
  if (done < size && ch_buffer_append(&log->waiting, lines + done, size - done)) log->error = ENOMEM;
}

int ch_log_sync(ch_log *log) {
  if (log->fd < 0) return CHOIR_OK;
  if (ch_log_flush(log)) return ch_write_error(log->error, log->path, log->waiting.size);
  return fsync(log->fd) ? ch_write_error(errno, log->path, 0) : CHOIR_OK;
}

enum { WAITING_MAX = 64 << 20 }; /* bytes of log lines in memory */

void ch_room_refused(ch_disk_wait *wait, double seconds) {
  wait->next_try = ch_machine_seconds() + fmax(1, 20 * seconds);
  snprintf(wait->why, sizeof wait->why, "%s", choir_error_message());
}

/* pending: the file that could not be written is not the log, and `why` has its error already. */
static void notice_change(ch_disk_wait *wait, int full, int pending, const ch_log *log) {
  double now = ch_machine_seconds();
  if (full && !wait->full_since) {
    wait->full_since = now;
    if (!pending) {
      ch_write_error(log->error, log->path, log->waiting.size);
      snprintf(wait->why, sizeof wait->why, "%s", choir_error_message());
    }
    ch_notice("%s; until there is room the run goes on in memory, for %.3g minutes at most", wait->why,
              wait->limit / 60);
  } else if (!full && wait->full_since) {
    ch_notice("there is room on the disk again, after %.0f s", now - wait->full_since);
    wait->full_since = 0;
  }
}

int ch_disk_wait_watch(ch_disk_wait *wait, ch_log *log, int pending) {
  int number = ch_log_flush(log);
  if (number == ENOMEM)
    return ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for what waits for room on the disk", log->path);
  if (number && !ch_is_full(number)) return ch_write_error(number, log->path, 0);
  notice_change(wait, number || pending, pending, log);
  wait->given_up = wait->full_since && (ch_disk_wait_seconds_left(wait) <= 0 || log->waiting.size > WAITING_MAX);
  return CHOIR_OK;
}

int ch_room_retry_due(const ch_disk_wait *wait) { return ch_machine_seconds() >= wait->next_try; }

double ch_disk_wait_seconds_left(const ch_disk_wait *wait) {
  return wait->full_since + wait->limit - ch_machine_seconds();
}

int ch_disk_wait_error(const ch_disk_wait *wait, int64_t step, int64_t steps) {
  char newest[64] = "There is no checkpoint";
  if (wait->saved_step)
    snprintf(newest, sizeof newest, "The newest checkpoint is that of step %" PRId64, wait->saved_step);
  return ch_error(CHOIR_ERROR_FULL,
                  "stopped after step %" PRId64 " of %" PRId64
                  ", which could not be saved: %s. %s; make room and resume",
                  step, steps, wait->why, newest);
}
