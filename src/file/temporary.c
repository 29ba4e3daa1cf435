#include "file/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"

static const char PREFIX[] = CH_TEMPORARY_PREFIX, MARK[] = "choir-made-this";
static const char WORDS[] =
    "choir makes an output here. Nothing is lost when this directory is removed while no "
    "process holds a lock on this file.\n";

static int remove_entry(const char *path, const struct stat *status, int flag, struct FTW *place) {
  (void)status, (void)flag, (void)place;
  return remove(path);
}

/* Finds an entry of the directory other than the mark file; name [NAME_MAX + 1]. Returns 1, 0 if there is none, -1
 * if the directory cannot be read. */
static int find_entry(const char *path, char *name) {
  DIR *stream = opendir(path);
  const struct dirent *entry = NULL;
  if (!stream) return -1;
  errno = 0;
  while ((entry = readdir(stream)))
    if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && strcmp(entry->d_name, MARK)) break;
  int found = entry ? 1 : errno ? -1 : 0;
  if (entry) strcpy(name, entry->d_name);
  closedir(stream);
  return found;
}

/* Removes a staging directory, the mark file last: if the directory cannot be read completely, the next writer finds
 * the mark and tries again. First closes `lock`, the mark's descriptor, because a process at its limit of open files
 * needs one to read the directory. */
static void remove_marked(const char *path, int lock) {
  char name[NAME_MAX + 1];
  int found;
  if (lock >= 0) close(lock);
  while ((found = find_entry(path, name)) > 0)
    if (nftw(CH_IN(path, name), remove_entry, 1, FTW_DEPTH | FTW_PHYS)) return;
  if (found < 0) return;
  unlink(CH_IN(path, MARK));
  rmdir(path);
}

/* The number of bytes of the mark's text that a file has; -1: the file has another text. */
static ssize_t words_in(int fd) {
  char text[sizeof WORDS];
  ssize_t n = pread(fd, text, sizeof text, 0);
  return n > (ssize_t)sizeof WORDS - 1 || (n > 0 && memcmp(text, WORDS, (size_t)n)) ? -1 : n;
}

/* Creates a new mark and locks it before writing its text, so that no other process takes it for the mark of a dead
 * process. 0, or -1 with errno. */
static int make_mark(ch_temporary *t) {
  struct stat opened, there;
  t->lock = open(CH_IN(t->path, MARK), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (t->lock < 0) return -1;
  if (flock(t->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
    return -1; /* on file systems without locks, leftovers are never removed */
  /* Between open and flock another process may have taken the mark for a dead process's and removed it. */
  if (fstat(t->lock, &opened) || lstat(CH_IN(t->path, MARK), &there)) return -1;
  if (opened.st_dev != there.st_dev || opened.st_ino != there.st_ino) return errno = ENOENT, -1;
  ssize_t n = write(t->lock, WORDS, sizeof WORDS - 1);
  if (n == sizeof WORDS - 1) return 0;
  if (n >= 0) errno = ENOSPC;
  return -1;
}

/* ---- hosts ----
 * Locks of some file systems do not reach other hosts (Lustre with localflock, NFS with nolock): there a live process
 * on another host looks dead. So the number in the name identifies the host by two hashes: of the running kernel, which
 * containers share, and of the host's name, which survives a reboot. */

enum { COUNTED = 1000000 }; /* the number is the host's hash times this, plus a counter */

static uint64_t hash_text(const char *text, size_t size) { return size ? XXH64(text, size, 0) >> 48 | 1 : 0; }

static uint64_t host_number(void) {
  static atomic_uint_least64_t known;
  char boot[64], name[256] = "";
  if (atomic_load(&known)) return atomic_load(&known);
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? 0 : read(fd, boot, sizeof boot);
  if (fd >= 0) close(fd);
  if (gethostname(name, sizeof name - 1)) *name = 0;
  atomic_store(&known,
               UINT64_C(1) << 32 | hash_text(boot, n > 0 ? (size_t)n : 0) << 16 | hash_text(name, strlen(name)));
  return atomic_load(&known);
}

/* Whether this host made a temporary with that number; names of earlier versions do not identify a host, so locks
 * decide. */
static int is_of_this_host(const char *number) {
  uint64_t maker = strtoull(number, NULL, 10) / COUNTED, same = maker ^ host_number();
  return maker >> 32 != 1 || (!(same & 0xFFFF) && maker & 0xFFFF) || (!(same & 0xFFFF0000) && maker & 0xFFFF0000);
}

int ch_temporary_make(ch_temporary *t, const char *parent) {
  static atomic_uint count;
  ch_temporary_clean(parent);
  for (int attempt = 0; attempt < 100; attempt++) {
    *t = (ch_temporary){.lock = -1};
    int length = snprintf(t->path, sizeof t->path, "%s/%s%ld-%" PRIu64, parent, PREFIX, (long)getpid(),
                          host_number() * COUNTED + atomic_fetch_add(&count, 1) % COUNTED);
    int made = length < (int)sizeof t->path ? mkdir(t->path, 0700) : (errno = ENAMETOOLONG, -1);
    if (made) t->path[0] = 0;
    if (!made && !make_mark(t)) return 0;
    ch_temporary_remove(t);
    /* The name is used by a process with the same id in another container, or by an earlier one; or the directory
     * was removed before it was marked. */
    if (errno != (made ? EEXIST : ENOENT) && errno != EWOULDBLOCK) break;
  }
  return -1;
}

int ch_temporary_next_to(ch_temporary *t, const char *target, char *inside, size_t size) {
  char parent[4096];
  const char *slash = strrchr(target, '/');
  ch_path_parent(target, parent, sizeof parent);
  if (ch_temporary_make(t, parent)) return -1;
  if (snprintf(inside, size, "%s/%s", t->path, slash ? slash + 1 : target) < (int)size) return 0;
  ch_temporary_remove(t);
  errno = ENAMETOOLONG;
  return -1;
}

void ch_temporary_remove(ch_temporary *t) {
  int number = errno;
  if (t->path[0]) remove_marked(t->path, t->lock);
  *t = (ch_temporary){.lock = -1};
  errno = number;
}

/* Whether the name is PREFIX, digits, '-', digits, made by this host. */
static int has_our_name(const char *name) {
  size_t length = sizeof PREFIX - 1;
  if (strncmp(name, PREFIX, length)) return 0;
  size_t process = strspn(name + length, "0123456789");
  const char *rest = name + length + process;
  return process && *rest == '-' && rest[1] && strspn(rest + 1, "0123456789") == strlen(rest + 1) &&
         is_of_this_host(rest + 1);
}

/* Removes a staging directory of this host whose process is dead. A directory without a complete mark is removed
 * only if it is empty. */
static void remove_if_dead(const char *path) {
  struct stat status;
  const char *mark = CH_IN(path, MARK);
  if (lstat(path, &status) || !S_ISDIR(status.st_mode) || status.st_uid != geteuid()) return;
  int fd = open(mark, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) rmdir(path);
    return;
  }
  ssize_t words = flock(fd, LOCK_EX | LOCK_NB) ? -1 : words_in(fd);
  if (words == sizeof WORDS - 1) {
    remove_marked(path, fd);
    return;
  }
  if (words >= 0 && !unlink(mark)) rmdir(path);
  close(fd);
}

void ch_temporary_clean(const char *directory) {
  int number = errno;
  DIR *stream = opendir(directory);
  for (struct dirent *entry; stream && (entry = readdir(stream));)
    if (has_our_name(entry->d_name)) remove_if_dead(CH_IN(directory, entry->d_name));
  if (stream) closedir(stream);
  errno = number;
}

int ch_temporary_holds(const char *path) {
  for (const char *at = path; (at = strstr(at, PREFIX)); at++)
    if (at == path || at[-1] == '/') return 1;
  return 0;
}

const char *ch_path_in(char *path, const char *directory, const char *name) {
  snprintf(path, CH_PATH_BYTES, "%s/%s", directory, name);
  return path;
}

void ch_path_parent(const char *path, char *parent, size_t size) {
  snprintf(parent, size, "%s", path);
  char *slash = strrchr(parent, '/');
  if (!slash)
    snprintf(parent, size, ".");
  else
    slash[slash == parent] = 0;
}

int ch_path_resolve(const char *path, char *target, size_t size) {
  enum { MAX = 40 }; /* the kernel's limit */
  char link[4096], parent[4096];
  int length = snprintf(target, size, "%s", path);
  while (length > 1 && length < (int)size && target[length - 1] == '/') target[--length] = 0;
  if (!length || length >= (int)size)
    return ch_error(CHOIR_ERROR_ARGUMENT, "'%.100s': not a usable name (%d bytes)", path, length);
  for (int i = 0; i < MAX; i++) {
    ssize_t n = readlink(target, link, sizeof link - 1);
    if (n < 0) return CHOIR_OK; /* not a link; other errors are found when the path is opened */
    link[n] = 0;
    ch_path_parent(target, parent, sizeof parent);
    length = *link == '/' ? snprintf(target, size, "%s", link) : snprintf(target, size, "%s/%s", parent, link);
    while (length > 1 && length < (int)size && target[length - 1] == '/') target[--length] = 0;
    if (length >= (int)size) return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", path);
  }
  errno = ELOOP;
  return ch_error_errno("%s", path);
}

int ch_is_full(int number) { return number == ENOSPC || number == EDQUOT; }

int ch_write_error(int number, const char *path, uint64_t needed) {
  if (ch_is_full(number)) {
    const char *what = number == ENOSPC ? "disk full" : "disk quota used up";
    if (!needed) return ch_error(CHOIR_ERROR_FULL, "%s: %s; make room and run again", path, what);
    return ch_error(CHOIR_ERROR_FULL, "%s: %s: needs %.4g MB (%" PRIu64 " bytes); make room and run again", path, what,
                    (double)needed / 1e6, needed);
  }
  errno = number;
  return ch_error_errno("%s", path);
}

int ch_begin_error(int number, const char *path, const char *what) {
  if (ch_is_full(number)) return ch_write_error(number, path, 0);
  errno = number;
  return ch_error_errno("%s: cannot be %s", path, what);
}

static int is_directory(int fd) {
  struct stat status;
  return !fstat(fd, &status) && S_ISDIR(status.st_mode);
}

/* Opens read-only, which is enough for fsync of files and directories. */
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
