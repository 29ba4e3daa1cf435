#include <dirent.h>
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
static int is_lock(int fd) {
  char text[32];
  ssize_t n = pread(fd, text, sizeof text, 0);
  for (ssize_t i = 0; i < n; i++)
    if (text[i] && (text[i] < '0' || text[i] > '9') && (text[i] != '\n' || i < n - 1)) return 0;
  return n >= 0 && n < (ssize_t)sizeof text;
}

/* Whether the open file still has that name: whoever failed in a new directory removes the lock with it. */
static int is_named(int fd, const char *path) {
  struct stat own, there;
  return !fstat(fd, &own) && !stat(path, &there) && own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

/* The locked file. */
static int open_locked(const char *directory, const char *path, int *fd) {
  for (;;) {
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) return ch_begin_error(errno, path, "written");
    if (flock(*fd, LOCK_EX | LOCK_NB)) {
      int code = errno == EWOULDBLOCK ? busy(directory, *fd) : ch_error_errno("%s: cannot be locked", path);
      close(*fd);
      return code;
    }
    if (is_named(*fd, path)) return CHOIR_OK;
    close(*fd);
  }
}

int ch_lock_take(const char *directory, int *lock) {
  char path[4096], text[32];
  int fd;
  if (snprintf(path, sizeof path, "%s/lock", directory) >= (int)sizeof path)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", directory);
  CH_TRY(open_locked(directory, path, &fd));
  if (!is_lock(fd)) {
    close(fd);
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s: is there, and not a lock of choir's; choose another directory", path);
  }
  int length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
  if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)length, 0) != length) {
    int number = errno;
    close(fd);
    return ch_begin_error(number, path, "written");
  }
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

/* How much of the path is there already. */
static size_t standing(const char *path) {
  char part[4096];
  size_t size = (size_t)snprintf(part, sizeof part, "%s", path);
  while (size && access(part, F_OK)) size = cut_name(part, size);
  return size;
}

/* Removes what is empty of the directories from `path` up to those that were there before. */
static void remove_made(char *path, size_t kept) {
  for (size_t size = strlen(path); size > kept && !rmdir(path);) size = cut_name(path, size);
}

/* Counts what is in the directory but the lock and directories; with `remove`, empty directories go. -1: no telling. */
static int count_files(const char *directory, int remove) {
  DIR *stream = opendir(directory);
  struct stat status;
  int files = 0;
  if (!stream) return -1;
  for (struct dirent *entry; (entry = readdir(stream));) {
    const char *name = entry->d_name;
    if (!strcmp(name, ".") || !strcmp(name, "..") || !strcmp(name, "lock")) continue;
    files += fstatat(dirfd(stream), name, &status, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(status.st_mode);
    if (remove) files += unlinkat(dirfd(stream), name, AT_REMOVEDIR) != 0;
  }
  closedir(stream);
  return files;
}

/* Whether the directory was not there before. */
static int is_new(const ch_claim *claim) { return claim->stood < strlen(claim->path); }

/* Removes a new directory, and its lock. */
static void remove_new(ch_claim *claim) {
  unlink(CH_IN(claim->path, "lock"));
  remove_made(claim->path, claim->stood);
}

int ch_claim_take(ch_claim *claim, const char *path) {
  *claim = CH_CLAIM_NONE;
  if (snprintf(claim->path, sizeof claim->path, "%s", path) >= (int)sizeof claim->path)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", path);
  claim->stood = standing(path);
  int code = ch_dir_make(path);
  if (!code) code = ch_lock_take(path, &claim->lock);
  if (code && code != CHOIR_ERROR_BUSY && is_new(claim)) remove_new(claim); /* BUSY: somebody has it meanwhile */
  return code;
}

void ch_claim_release(ch_claim *claim, int failed) {
  if (claim->lock < 0) return;
  if (failed && is_new(claim) && !count_files(claim->path, 0) && !count_files(claim->path, 1)) remove_new(claim);
  ch_lock_release(claim->lock);
  claim->lock = -1;
}
