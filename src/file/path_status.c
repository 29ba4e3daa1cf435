#include "file/path_status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int ch_is_absent(int number) { return number == ENOENT || number == ENOTDIR; }

int ch_is_unreadable(int code) {
  return code == CHOIR_ERROR_IO && ch_error_number() && !ch_is_absent(ch_error_number());
}

/* `failed` is the return value of stat or lstat. */
static int answer(int failed, const char *path, int *there) {
  *there = !failed;
  if (!failed || ch_is_absent(errno)) return CHOIR_OK;
  return ch_error_errno("%s: cannot check whether the path exists", path);
}

int ch_path_exists(const char *path, int *there) {
  struct stat status;
  return answer(stat(path, &status), path, there);
}

int ch_entry_exists(const char *path, int *there) {
  struct stat status;
  return answer(lstat(path, &status), path, there);
}

static int not_regular(const char *path, mode_t mode, mode_t wanted) {
  const char *what = S_ISLNK(mode) ? "a symbolic link" : S_ISDIR(mode) ? "a directory" : "a pipe, device or socket";
  if (S_ISREG(mode)) what = "a file";
  return ch_error(CHOIR_ERROR_FORMAT,
                  "%s: is %s, and choir puts %s there: put that itself in its place, or use another directory", path,
                  what, S_ISDIR(wanted) ? "a directory" : "a regular file");
}

static int regular_exists(const char *path, mode_t wanted, int *there) {
  struct stat status;
  CH_TRY(answer(lstat(path, &status), path, there));
  return !*there || (status.st_mode & S_IFMT) == wanted ? CHOIR_OK : not_regular(path, status.st_mode, wanted);
}

int ch_regular_exists(const char *path, int *there) { return regular_exists(path, S_IFREG, there); }
int ch_directory_exists(const char *path, int *there) { return regular_exists(path, S_IFDIR, there); }

int ch_open_regular(const char *path, int flags, int *fd) {
  struct stat status;
  *fd = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  if (*fd < 0 && errno == ELOOP) return not_regular(path, S_IFLNK, S_IFREG);
  if (*fd < 0) return ch_error_errno("%s: cannot be opened", path);
  int failed = fstat(*fd, &status), code = CHOIR_OK;
  if (failed)
    code = ch_error_errno("%s: cannot find out the type of file", path);
  else if (!S_ISREG(status.st_mode))
    code = not_regular(path, status.st_mode, S_IFREG);
  if (!code) return CHOIR_OK;
  close(*fd);
  *fd = -1;
  return code;
}

int ch_is_named(int fd, const char *path, int *named) {
  struct stat opened, at_path;
  *named = 0;
  if (fstat(fd, &opened)) return ch_error_errno("%s: cannot find out the type of file", path);
  if (!lstat(path, &at_path))
    *named = opened.st_dev == at_path.st_dev && opened.st_ino == at_path.st_ino;
  else if (!ch_is_absent(errno))
    return ch_error_errno("%s: cannot check whether the path exists", path);
  return CHOIR_OK;
}

int ch_has_other_names(int fd, const char *path, int *others) {
  struct stat status;
  if (fstat(fd, &status)) return ch_error_errno("%s: cannot find out how many names the file has", path);
  *others = status.st_nlink > 1;
  return CHOIR_OK;
}

int ch_same_file(const char *a, const char *b) {
  struct stat x, y;
  return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int ch_list(const char *directory, int (*each)(void *context, const char *name), void *context) {
  DIR *stream = opendir(directory);
  int code = CHOIR_OK;
  if (!stream) return ch_error_errno("%s: cannot read", directory);
  while (!code) {
    errno = 0;
    const struct dirent *entry = readdir(stream);
    if (!entry && errno) code = ch_error_errno("%s: cannot be read to its end", directory);
    if (!entry) break;
    if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) code = each(context, entry->d_name);
  }
  closedir(stream);
  return code;
}
