#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/dir.h"
#include "file/path_status.h"
#include "file/temporary.h"

/* CHOIR_ERROR_BUSY, naming the process whose id is in the lock file. */
static int busy(const char *directory, int fd) {
  char text[32] = {0};
  long pid = read(fd, text, sizeof text - 1) > 0 ? strtol(text, NULL, 10) : 0;
  if (pid <= 0) return ch_error(CHOIR_ERROR_BUSY, "%s: another process is using it", directory);
  return ch_error(CHOIR_ERROR_BUSY, "%s: process %ld is using it; wait for it, stop it, or choose another directory",
                  directory, pid);
}

/* A lock file has a process id and a line end, or what a power failure left of it (a part, zeros, nothing): any
 * other content is a user's file. */
static int check_lock(int fd, const char *path) {
  char text[32];
  ssize_t n = pread(fd, text, sizeof text, 0);
  if (n < 0) return ch_error_errno("%s: cannot be read", path);
  int ours = n < (ssize_t)sizeof text;
  for (ssize_t i = 0; i < n; i++)
    ours &= !text[i] || (text[i] >= '0' && text[i] <= '9') || (text[i] == '\n' && i == n - 1);
  if (ours) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "%s: is there, and not a lock of choir's; choose another directory", path);
}

/* Whether the open file is the lock of this directory alone. A lock with other names is also another directory's (a
 * copy by hard links): this name is removed, and the file is not changed. */
static int is_unshared(int fd, const char *path, int *unshared) {
  int others = 0;
  CH_TRY(ch_is_named(fd, path, unshared));
  if (*unshared) CH_TRY(ch_has_other_names(fd, path, &others));
  if (!others) return CHOIR_OK;
  *unshared = 0;
  CH_TRY(check_lock(fd, path));
  return unlink(path) && errno != ENOENT ? ch_error_errno("%s: cannot be removed", path) : CHOIR_OK;
}

/* Opens and locks the lock file. A process that failed in a new directory removes its lock: if the opened file has
 * lost its name meanwhile, the file is opened again. */
static int open_locked(const char *directory, const char *path, int *fd) {
  for (int unshared = 0; !unshared;) {
    int code = ch_open_regular(path, O_RDWR | O_CREAT, fd);
    if (code == CHOIR_ERROR_IO) return ch_begin_error(ch_error_number(), path, "written");
    CH_TRY(code);
    int number = flock(*fd, LOCK_EX | LOCK_NB) ? errno : 0;
    int none = number == ENOSYS || number == ENOLCK || number == EOPNOTSUPP;
    if (!number || none)
      code = is_unshared(*fd, path, &unshared);
    else
      code = number == EWOULDBLOCK ? busy(directory, *fd) : ch_error_errno("%s: cannot be locked", path);
    if (code || !unshared) close(*fd);
    CH_TRY(code);
    if (unshared && none)
      ch_notice(
          "%s: this file system has no locks (%s): nothing keeps two processes from writing there; see to it that "
          "one does",
          path, strerror(number));
  }
  return CHOIR_OK;
}

int ch_lock_take(const char *directory, int *lock) {
  char path[4096], text[32];
  int fd;
  if (snprintf(path, sizeof path, "%s/" CH_LOCK, directory) >= (int)sizeof path)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", directory);
  CH_TRY(open_locked(directory, path, &fd));
  int code = check_lock(fd, path), length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
  errno = ENOSPC; /* the errno of a short write */
  if (!code && (ftruncate(fd, 0) || pwrite(fd, text, (size_t)length, 0) != length))
    code = ch_begin_error(errno, path, "written");
  if (code) return close(fd), code;
  *lock = fd;
  return CHOIR_OK;
}

void ch_lock_release(int lock) { close(lock); }

/* Removes the last component of a path of that size, and slashes after it or in a row. */
static size_t cut_name(char *path, size_t size) {
  while (size && path[size - 1] == '/') size--;
  while (size && path[size - 1] != '/') size--;
  path[size] = 0;
  return size;
}

/* Length of the longest prefix of the path that exists or may exist; cleanup never removes it. */
static size_t standing(const char *path) {
  char part[4096];
  size_t size = (size_t)snprintf(part, sizeof part, "%s", path);
  for (int there = 0; size && !ch_entry_exists(part, &there) && !there;) size = cut_name(part, size);
  return size;
}

/* Removes empty directories from `path` up to those that existed before. */
static void remove_made(char *path, size_t kept) {
  for (size_t size = strlen(path); size > kept && !rmdir(path);) size = cut_name(path, size);
}

/* For ch_list: removes an empty directory if possible; any other entry except the lock is an error, so that the
 * parent directory is kept. */
static int remove_empty(void *directory, const char *name) {
  return !strcmp(name, CH_LOCK) || !rmdir(CH_IN(directory, name)) ? CHOIR_OK : CHOIR_ERROR_BUSY;
}
static int keep_directory(void *directory, const char *name) {
  struct stat status;
  if (!strcmp(name, CH_LOCK)) return CHOIR_OK;
  return lstat(CH_IN(directory, name), &status) || !S_ISDIR(status.st_mode) ? CHOIR_ERROR_BUSY : CHOIR_OK;
}

/* Whether the reservation created the directory. */
static int is_new(const ch_reservation *reservation) { return reservation->stood < strlen(reservation->path); }

/* Removes everything that the reservation created: the lock, the inner directory, the directory and its parents. */
static void remove_new(ch_reservation *reservation) {
  if (reservation->makes_lock) unlink(CH_IN(reservation->path, CH_LOCK));
  if (*reservation->inner) rmdir(reservation->inner);
  remove_made(reservation->path, reservation->stood);
}

/* choir creates the inner directory before the lock: a lock without that directory is a user's file. */
static int check_stranger(const ch_reservation *reservation, int known) {
  const char *path = CH_IN(reservation->path, CH_LOCK);
  if (reservation->makes_lock || known || !*reservation->inner) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "%s: is there, and the directory holds no run; choose another directory", path);
}

static int take(ch_reservation *reservation, const char *inner, int known) {
  int there = 0;
  if (inner) {
    const char *path = CH_IN(reservation->path, inner);
    CH_TRY(ch_directory_exists(path, &there));
    if (!there) snprintf(reservation->inner, sizeof reservation->inner, "%s", path);
  }
  CH_TRY(ch_regular_exists(CH_IN(reservation->path, CH_LOCK), &there));
  reservation->makes_lock = !there;
  CH_TRY(check_stranger(reservation, known));
  CH_TRY(ch_dir_make(inner ? CH_IN(reservation->path, inner) : reservation->path));
  return ch_lock_take(reservation->path, &reservation->lock);
}

int ch_reservation_take(ch_reservation *reservation, const char *path, const char *inner, int known) {
  *reservation = CH_RESERVATION_NONE;
  if (snprintf(reservation->path, sizeof reservation->path, "%s", path) >= (int)sizeof reservation->path)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", path);
  reservation->stood = standing(path);
  int code = take(reservation, inner, known);
  if (code && code != CHOIR_ERROR_BUSY) remove_new(reservation); /* BUSY: another process has locked it meanwhile */
  return code;
}

void ch_reservation_release(ch_reservation *reservation, int failed) {
  if (reservation->lock < 0) return;
  if (failed && !ch_list(reservation->path, keep_directory, reservation->path) && is_new(reservation)) {
    if (!ch_list(reservation->path, remove_empty, reservation->path)) remove_new(reservation);
  } else if (failed && reservation->fruitless) {
    remove_new(reservation);
  }
  ch_lock_release(reservation->lock);
  reservation->lock = -1;
}
