#include "file/sync.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/temporary.h"

int ch_write_error(int number, const char *path, uint64_t needed) {
  if (number == ENOSPC || number == EDQUOT) {
    const char *what = number == ENOSPC ? "disk full" : "disk quota used up";
    if (!needed) return ch_error(CHOIR_ERROR_FULL, "%s: %s; make room and run again", path, what);
    return ch_error(CHOIR_ERROR_FULL, "%s: %s: needs %.4g MB (%" PRIu64 " bytes); make room and run again", path, what,
                    (double)needed / 1e6, needed);
  }
  errno = number;
  return ch_error_errno("%s", path);
}

static int is_directory(int fd) {
  struct stat status;
  return !fstat(fd, &status) && S_ISDIR(status.st_mode);
}

/* Opened for reading: enough for fsync, files and directories alike. */
int ch_sync(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  int failed = fsync(fd), number = errno;
  if (failed && (number == EINVAL || number == ENOTSUP || number == ENOSYS) && is_directory(fd)) failed = 0;
  close(fd);
  errno = number;
  return failed;
}

int ch_sync_parent(const char *path) {
  char parent[4096];
  ch_path_parent(path, parent, sizeof parent);
  return ch_sync(parent) ? ch_write_error(errno, parent, 0) : CHOIR_OK;
}
