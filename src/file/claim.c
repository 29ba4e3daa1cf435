#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/dir.h"
#include "file/temporary.h"
#include "file/there.h"

/* CHOIR_ERROR_BUSY, naming who wrote its number into the lock. */
static int busy(const char *directory, int fd) {
  char text[32] = {0};
  long pid = read(fd, text, sizeof text - 1) > 0 ? strtol(text, NULL, 10) : 0;
  if (pid <= 0) return ch_error(CHOIR_ERROR_BUSY, "%s: another process is using it", directory);
  return ch_error(CHOIR_ERROR_BUSY, "%s: process %ld is using it; wait for it, stop it, or choose another directory",
                  directory, pid);
}

/* A number and a line end, or what a power failure left of it (a part, zeros, nothing): anything else is somebody
 * else's file. */
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

/* Whether the open file is the lock of this directory alone. One with other names is another directory's, too (a copy
 * by hard links): it loses this name, and stays as it is. */
static int is_own(int fd, const char *path, int *own) {
  int others = 0;
  CH_TRY(ch_is_named(fd, path, own));
  if (*own) CH_TRY(ch_has_other_names(fd, path, &others));
  if (!others) return CHOIR_OK;
  *own = 0;
  CH_TRY(check_lock(fd, path));
  return unlink(path) && errno != ENOENT ? ch_error_errno("%s: cannot be removed", path) : CHOIR_OK;
}

/* The locked file. Whoever failed in a new directory removes the lock with it: what has lost its name meanwhile is
 * opened anew. */
static int open_locked(const char *directory, const char *path, int *fd) {
  for (int own = 0; !own;) {
    int code = ch_own_open(path, O_RDWR | O_CREAT, fd);
    if (code == CHOIR_ERROR_IO) return ch_begin_error(ch_error_number(), path, "written");
    CH_TRY(code);
    int number = flock(*fd, LOCK_EX | LOCK_NB) ? errno : 0;
    int none = number == ENOSYS || number == ENOLCK || number == EOPNOTSUPP;
    if (!number || none)
      code = is_own(*fd, path, &own);
    else
      code = number == EWOULDBLOCK ? busy(directory, *fd) : ch_error_errno("%s: cannot be locked", path);
    if (code || !own) close(*fd);
    CH_TRY(code);
    if (own && none)
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
  errno = ENOSPC; /* of a short write */
  if (!code && (ftruncate(fd, 0) || pwrite(fd, text, (size_t)length, 0) != length))
    code = ch_begin_error(errno, path, "written");
  if (code) return close(fd), code;
  *lock = fd;
  return CHOIR_OK;
}

void ch_lock_release(int lock) { close(lock); }

/* Cuts the last name off a path of that size, and slashes behind it or twice in a row. */
static size_t cut_name(char *path, size_t size) {
  while (size && path[size - 1] == '/') size--;
  while (size && path[size - 1] != '/') size--;
  path[size] = 0;
  return size;
}

/* How much of the path is there already, or may be: of that nothing is removed. */
static size_t standing(const char *path) {
  char part[4096];
  size_t size = (size_t)snprintf(part, sizeof part, "%s", path);
  for (int there = 0; size && !ch_entry_there(part, &there) && !there;) size = cut_name(part, size);
  return size;
}

/* Removes what is empty of the directories from `path` up to those that were there before. */
static void remove_made(char *path, size_t kept) {
  for (size_t size = strlen(path); size > kept && !rmdir(path);) size = cut_name(path, size);
}

/* For ch_list: removes an empty directory, or lets it be; anything else except the lock is an error, so that the
 * directory that it is in stays. */
static int remove_empty(void *directory, const char *name) {
  return !strcmp(name, CH_LOCK) || !rmdir(CH_IN(directory, name)) ? CHOIR_OK : CHOIR_ERROR_BUSY;
}
static int keep_directory(void *directory, const char *name) {
  struct stat status;
  if (!strcmp(name, CH_LOCK)) return CHOIR_OK;
  return lstat(CH_IN(directory, name), &status) || !S_ISDIR(status.st_mode) ? CHOIR_ERROR_BUSY : CHOIR_OK;
}

/* Whether the directory was not there before. */
static int is_new(const ch_claim *claim) { return claim->stood < strlen(claim->path); }

/* Removes what the claim made: the lock, the inner directory, the directory and its parents. */
static void remove_new(ch_claim *claim) {
  if (claim->makes_lock) unlink(CH_IN(claim->path, CH_LOCK));
  if (*claim->inner) rmdir(claim->inner);
  remove_made(claim->path, claim->stood);
}

/* choir makes the inner directory before the lock: a lock without that directory is somebody else's file. */
static int check_stranger(const ch_claim *claim, int known) {
  const char *path = CH_IN(claim->path, CH_LOCK);
  if (claim->makes_lock || known || !*claim->inner) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "%s: is there, and the directory holds no run; choose another directory", path);
}

static int take(ch_claim *claim, const char *inner, int known) {
  int there = 0;
  if (inner) {
    const char *path = CH_IN(claim->path, inner);
    CH_TRY(ch_own_directory_there(path, &there));
    if (!there) snprintf(claim->inner, sizeof claim->inner, "%s", path);
  }
  CH_TRY(ch_own_there(CH_IN(claim->path, CH_LOCK), &there));
  claim->makes_lock = !there;
  CH_TRY(check_stranger(claim, known));
  CH_TRY(ch_dir_make(inner ? CH_IN(claim->path, inner) : claim->path));
  return ch_lock_take(claim->path, &claim->lock);
}

int ch_claim_take(ch_claim *claim, const char *path, const char *inner, int known) {
  *claim = CH_CLAIM_NONE;
  if (snprintf(claim->path, sizeof claim->path, "%s", path) >= (int)sizeof claim->path)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", path);
  claim->stood = standing(path);
  int code = take(claim, inner, known);
  if (code && code != CHOIR_ERROR_BUSY) remove_new(claim); /* BUSY: somebody has it meanwhile */
  return code;
}

void ch_claim_release(ch_claim *claim, int failed) {
  if (claim->lock < 0) return;
  if (failed && !ch_list(claim->path, keep_directory, claim->path) && is_new(claim)) {
    if (!ch_list(claim->path, remove_empty, claim->path)) remove_new(claim);
  } else if (failed && claim->fruitless) {
    remove_new(claim);
  }
  ch_lock_release(claim->lock);
  claim->lock = -1;
}
