#include "file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/path_status.h"
#include "file/temporary.h"

enum { CHUNK = 1 << 30 }; /* Linux writes at most 2 GiB per call */

/* Chooses where the file is written: in a staging directory beside the target, or at the target itself if that is
 * inside a staging directory already. */
static int choose_temporary(ch_file *file) {
  if (ch_temporary_holds(file->target)) {
    snprintf(file->temporary, sizeof file->temporary, "%s", file->target);
    return CHOIR_OK;
  }
  if (!ch_temporary_next_to(&file->place, file->target, file->temporary, sizeof file->temporary)) return CHOIR_OK;
  return ch_begin_error(errno, file->path, "written");
}

int ch_file_begin(ch_file *file, const char *path) {
  *file = (ch_file){.fd = -1, .place.lock = -1};
  int length = snprintf(file->path, sizeof file->path, "%s", path);
  if (!length || length >= (int)sizeof file->path)
    return ch_error(CHOIR_ERROR_ARGUMENT, "'%.100s': not a usable file name (%d bytes)", path, length);
  CH_TRY(ch_path_resolve(path, file->target, sizeof file->target));
  struct stat status; /* a device or directory must not be replaced by a rename */
  int there = !stat(file->target, &status);
  if (!there && !ch_is_absent(errno)) return ch_error_errno("%s: cannot check whether the path exists", path);
  if (there && !S_ISREG(status.st_mode)) return ch_error(CHOIR_ERROR_IO, "%s: is there and not a regular file", path);
  CH_TRY(choose_temporary(file));
  file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file->fd < 0) {
    ch_temporary_remove(&file->place);
    return ch_begin_error(errno, file->path, "written");
  }
  if (there) fchmod(file->fd, status.st_mode & (fchown(file->fd, status.st_uid, status.st_gid) ? 0777 : 07777));
  return CHOIR_OK;
}

void ch_file_rewrite(ch_file *file, uint64_t offset, const void *data, size_t bytes) {
  const char *from = data;
  while (bytes && !file->error) {
    ssize_t n = pwrite(file->fd, from, bytes < CHUNK ? bytes : CHUNK, (off_t)offset);
    if (n < 0) {
      if (errno != EINTR) file->error = errno;
      continue;
    }
    from += n;
    bytes -= (size_t)n;
    offset += (uint64_t)n;
  }
}

void ch_file_write(ch_file *file, const void *data, size_t bytes) {
  ch_file_rewrite(file, file->bytes, data, bytes);
  if (!file->error) file->bytes += bytes;
}

void ch_file_abandon(ch_file *file) {
  if (file->fd < 0) return;
  close(file->fd);
  unlink(file->temporary);
  ch_temporary_remove(&file->place);
  file->fd = -1;
}

int ch_file_flush(ch_file *file) {
  if (!file->error && fsync(file->fd)) file->error = errno;
  if (!file->error) return CHOIR_OK;
  ch_file_abandon(file);
  return ch_write_error(file->error, file->path, file->needed);
}

int ch_file_commit(ch_file *file) {
  CH_TRY(ch_file_flush(file));
  if (!file->error && strcmp(file->temporary, file->target) && rename(file->temporary, file->target))
    file->error = errno;
  if (file->error) {
    ch_file_abandon(file);
    return ch_write_error(file->error, file->path, file->needed);
  }
  close(file->fd); /* already fsynced */
  file->fd = -1;
  int code = ch_sync_parent(file->target);
  ch_temporary_remove(&file->place);
  return code;
}

int ch_file_save(const char *path, const void *data, size_t bytes) {
  ch_file file;
  CH_TRY(ch_file_begin(&file, path));
  file.needed = bytes;
  ch_file_write(&file, data, bytes);
  return ch_file_commit(&file);
}

/* Opens a regular file and returns its size. */
static int open_sized(const char *path, int *fd, size_t *bytes) {
  struct stat status;
  *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* without O_NONBLOCK, opening a pipe would block */
  if (*fd < 0) return ch_error_errno("%s", path);
  int failed = fstat(*fd, &status);
  if (!failed && S_ISREG(status.st_mode)) {
    *bytes = (size_t)status.st_size;
    return CHOIR_OK;
  }
  int code = failed ? ch_error_errno("%s", path) : ch_error(CHOIR_ERROR_IO, "%s: not a regular file", path);
  close(*fd);
  return code;
}

/* Reads `bytes` bytes or to the end of the file, whichever is first. */
static ssize_t read_bytes(int fd, char *data, size_t bytes) {
  size_t used = 0;
  while (used < bytes) {
    ssize_t n = read(fd, data + used, bytes - used < CHUNK ? bytes - used : CHUNK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    used += (size_t)n;
  }
  return (ssize_t)used;
}

int ch_file_read(const char *path, size_t limit, char **data, size_t *bytes) {
  int fd, code = CHOIR_OK;
  size_t size;
  *data = NULL;
  CH_TRY(open_sized(path, &fd, &size));
  if (size > limit)
    code = ch_error(CHOIR_ERROR_FORMAT, "%s: %zu bytes; at most %zu are read", path, size, limit);
  else if (!(*data = malloc(size + 1)))
    code = ch_error(CHOIR_ERROR_MEMORY, "%s: not enough memory for %zu bytes", path, size);
  ssize_t n = code ? 0 : read_bytes(fd, *data, size);
  if (n < 0) code = ch_error_errno("%s", path);
  close(fd);
  if (code) {
    free(*data);
    *data = NULL;
    return code;
  }
  (*data)[n] = 0;
  *bytes = (size_t)n;
  return CHOIR_OK;
}

/* Copies a file to memory if its file system cannot map it (9p, some of FUSE's). A memfd's pages survive
 * ch_file_forget, like those of a file. */
static void *map_copy(const char *path, int fd, size_t bytes) {
  void *map = MAP_FAILED;
  int copy = memfd_create("choir", MFD_CLOEXEC);
  if (copy < 0) return MAP_FAILED;
  if (!ftruncate(copy, (off_t)bytes)) map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
  int number = errno;
  close(copy);
  errno = number;
  if (map == MAP_FAILED) return map;
  ssize_t n = read_bytes(fd, map, bytes);
  if (n == (ssize_t)bytes) {
    ch_notice("%s: its file system cannot map files; %zu bytes are read into memory", path, bytes);
    return map;
  }
  number = n < 0 ? errno : EIO;
  munmap(map, bytes);
  errno = number;
  return MAP_FAILED;
}

int ch_file_map(const char *path, const void **data, size_t *bytes) {
  int fd;
  CH_TRY(open_sized(path, &fd, bytes));
  void *map = *bytes ? mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0) : (void *)"";
  if (map == MAP_FAILED && errno == ENODEV) map = map_copy(path, fd, *bytes);
  int number = errno;
  close(fd);
  errno = number;
  if (map == MAP_FAILED) return ch_error_errno("%s: cannot be mapped", path);
  *data = map;
  return CHOIR_OK;
}

void ch_file_unmap(const void *data, size_t bytes) {
  if (bytes) munmap((void *)(uintptr_t)data, bytes);
}

void ch_file_forget(const void *data, size_t bytes) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)data + page - 1) / page * page;
  uintptr_t end = ((uintptr_t)data + bytes) / page * page;
  if (end > begin) madvise((void *)begin, end - begin, MADV_DONTNEED);
}
