#include "base/dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

/* The directory that holds `path`; "." for a bare name. */
static void parent_of(const char *path, char *parent, size_t size) {
  snprintf(parent, size, "%s", path);
  char *slash = strrchr(parent, '/');
  if (!slash)
    snprintf(parent, size, ".");
  else
    slash[slash == parent] = 0;
}

/* 0 or -1 with errno. Opened for reading: enough for fsync, files and directories alike. */
static int sync_path(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  int failed = fsync(fd), number = errno;
  close(fd);
  errno = number;
  return failed;
}

int ch_dir_sync_parent(const char *path) {
  char parent[4096];
  parent_of(path, parent, sizeof parent);
  return sync_path(parent) ? ch_error_errno("%s", parent) : CHOIR_OK;
}

static int remove_entry(const char *path, const struct stat *status, int flag, struct FTW *place) {
  (void)status, (void)flag, (void)place;
  return remove(path);
}

static int remove_tree(const char *path) { return nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

/* Leftovers NAME.tmp-PID of processes that are gone, of one name or (NULL) of all. Best effort: they cost room, nothing
 * else. */
static void remove_leftovers(const char *directory, const char *name) {
  char whole[8192];
  DIR *stream = opendir(directory);
  if (!stream) return;
  for (struct dirent *entry; (entry = readdir(stream));) {
    const char *tail = strstr(entry->d_name, ".tmp-");
    if (!tail ||
        (name && (strlen(name) != (size_t)(tail - entry->d_name) || strncmp(entry->d_name, name, strlen(name)))))
      continue;
    long pid = strtol(tail + 5, NULL, 10);
    if (pid <= 0 || pid == getpid() || !kill((pid_t)pid, 0) || errno != ESRCH) continue;
    snprintf(whole, sizeof whole, "%s/%s", directory, entry->d_name);
    remove_tree(whole);
  }
  closedir(stream);
}

void ch_dir_clean(const char *directory) { remove_leftovers(directory, NULL); }

/* The directory's name without slashes at its end, and the one beside it. */
static int name_dir(ch_dir *dir, const char *path) {
  int length = snprintf(dir->path, sizeof dir->path, "%s", path);
  while (length > 1 && length < (int)sizeof dir->path && dir->path[length - 1] == '/') dir->path[--length] = 0;
  if (!length || length >= (int)sizeof dir->path)
    return ch_error(CHOIR_ERROR_ARGUMENT, "'%.100s': not a usable directory name (%d bytes)", path, length);
  snprintf(dir->temporary, sizeof dir->temporary, "%s.tmp-%ld", dir->path, (long)getpid());
  return CHOIR_OK;
}

int ch_dir_begin(ch_dir *dir, const char *path) {
  CH_TRY(name_dir(dir, path));
  char parent[4096];
  parent_of(dir->path, parent, sizeof parent);
  const char *slash = strrchr(dir->path, '/');
  remove_leftovers(parent, slash ? slash + 1 : dir->path);
  remove_tree(dir->temporary); /* of an earlier process with our number */
  if (mkdir(dir->temporary, 0777)) return ch_error_errno("%s: cannot be created", dir->path);
  return CHOIR_OK;
}

static int sync_entry(const char *path, const struct stat *status, int flag, struct FTW *place) {
  (void)status, (void)place;
  return flag == FTW_SL ? 0 : sync_path(path);
}

int ch_dir_commit(ch_dir *dir) {
  if (!nftw(dir->temporary, sync_entry, 16, FTW_DEPTH | FTW_PHYS) && !rename(dir->temporary, dir->path))
    return ch_dir_sync_parent(dir->path);
  int number = errno;
  ch_dir_abandon(dir);
  if (number == ENOTEMPTY || number == EEXIST)
    return ch_error(CHOIR_ERROR_IO, "%s: exists already and is not empty; remove it or choose another name", dir->path);
  return ch_file_error(number, dir->path, 0);
}

void ch_dir_abandon(ch_dir *dir) { remove_tree(dir->temporary); }

int ch_dir_make(const char *path) {
  char part[4096];
  if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", path);
  for (char *slash = part; *slash && (slash = strchr(slash + 1, '/'));) {
    *slash = 0;
    if (mkdir(part, 0777) && errno != EEXIST) return ch_error_errno("%s: cannot be created", part);
    *slash = '/';
  }
  struct stat status;
  if (mkdir(part, 0777) && errno != EEXIST) return ch_error_errno("%s: cannot be created", path);
  if (stat(path, &status) || !S_ISDIR(status.st_mode))
    return ch_error(CHOIR_ERROR_IO, "%s: exists and is not a directory", path);
  return CHOIR_OK;
}

int ch_dir_remove(const char *path) {
  ch_dir dir;
  CH_TRY(name_dir(&dir, path));
  if (rename(dir.path, dir.temporary) || remove_tree(dir.temporary))
    return ch_error_errno("%s: cannot be removed", dir.path);
  return CHOIR_OK;
}

/* CHOIR_ERROR_BUSY, naming who wrote its number into the lock. */
static int busy(const char *directory, int fd) {
  char text[32] = {0};
  long pid = read(fd, text, sizeof text - 1) > 0 ? strtol(text, NULL, 10) : 0;
  if (pid <= 0) return ch_error(CHOIR_ERROR_BUSY, "%s: another process is using it", directory);
  return ch_error(CHOIR_ERROR_BUSY, "%s: process %ld is using it; wait for it, stop it, or choose another directory",
                  directory, pid);
}

int ch_lock_take(const char *directory, int *lock) {
  char path[4096], text[32];
  if (snprintf(path, sizeof path, "%s/lock", directory) >= (int)sizeof path)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", directory);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return ch_error_errno("%s: cannot be written", path);
  if (flock(fd, LOCK_EX | LOCK_NB)) {
    int code = errno == EWOULDBLOCK ? busy(directory, fd) : ch_error_errno("%s", path);
    close(fd);
    return code;
  }
  int length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
  if (ftruncate(fd, 0) || write(fd, text, (size_t)length) != length) {
    int number = errno;
    close(fd);
    return ch_file_error(number, path, (uint64_t)length);
  }
  *lock = fd;
  return CHOIR_OK;
}

void ch_lock_release(int lock) { close(lock); }
