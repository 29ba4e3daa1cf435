/* Preloaded into a program: makes chosen system calls and allocations fail, or kills the process in their place, and
 * records what a program does to its files. shim.h says how it is told. */
#include "shim.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
  atomic_int armed;
  int chosen, number, directories; /* class that fails, with which errno */
  uint64_t first, count;
  shim_counts *counts;
  int trace; /* descriptor, or -1 */
  char root[PATH_MAX];
  size_t root_length;
} shim = {.chosen = -1, .trace = -1};

static _Atomic uint64_t calls[SHIM_CLASSES];
static pthread_mutex_t trace_lock = PTHREAD_MUTEX_INITIALIZER;

/* These functions of libraries are no system calls. */
static struct {
  FILE *(*fopen)(const char *, const char *);
  DIR *(*opendir)(const char *);
  struct dirent *(*readdir)(DIR *);
  int (*pthread_create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
} real;

static void find_real(void) {
  if (real.pthread_create) return;
  *(void **)&real.fopen = dlsym(RTLD_NEXT, "fopen");
  *(void **)&real.opendir = dlsym(RTLD_NEXT, "opendir");
  *(void **)&real.readdir = dlsym(RTLD_NEXT, "readdir");
  *(void **)&real.pthread_create = dlsym(RTLD_NEXT, "pthread_create");
}

/* What the shim itself asks does not count. */
static int own_stat(const char *path, struct stat *status) {
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, 0);
}
static int own_lstat(const char *path, struct stat *status) {
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
static int own_fstat(int fd, struct stat *status) { return (int)syscall(SYS_fstat, fd, status); }

/* ---- counting and failing */

/* Notes the library that made the failing call: faults_sweep expects another outcome for some libraries. */
static void note_caller(void) {
  static const char *const passing[] = {"libchoir_shim.", "libc.so", "libstdc++.", "libgcc_s."};
  void *frames[32];
  int count = backtrace(frames, sizeof frames / sizeof *frames);
  for (int i = 0; i < count; i++) {
    Dl_info info;
    if (!dladdr(frames[i], &info) || !info.dli_fname) continue;
    const char *slash = strrchr(info.dli_fname, '/'), *name = slash ? slash + 1 : info.dli_fname;
    int passes = 0;
    for (size_t k = 0; k < sizeof passing / sizeof *passing; k++)
      passes |= !strncmp(name, passing[k], strlen(passing[k]));
    if (passes) continue;
    snprintf(shim.counts->caller, sizeof shim.counts->caller, "%s", name);
    return;
  }
}

/* Nonzero: this call fails, with errno set. */
static int fails(shim_class class) {
  if (!atomic_load_explicit(&shim.armed, memory_order_relaxed)) return 0;
  uint64_t number = atomic_fetch_add(&calls[class], 1) + 1;
  if (shim.counts) __atomic_store_n(&shim.counts->calls[class], number, __ATOMIC_RELAXED);
  if (shim.chosen != (int)class || number < shim.first || number - shim.first >= shim.count) return 0;
  if (shim.counts) {
    __atomic_fetch_add(&shim.counts->failed, 1, __ATOMIC_RELAXED);
    note_caller();
  }
  if (!shim.number) kill(getpid(), SIGKILL);
  errno = shim.number;
  return 1;
}

static void read_fault(const char *text) {
  static const char *const names[] = SHIM_NAMES;
  char name[32];
  unsigned long long first = 0, count = 1;
  if (!text || sscanf(text, "%31[a-z]:%d:%llu:%llu", name, &shim.number, &first, &count) < 3) return;
  for (int i = 0; i < SHIM_CLASSES; i++)
    if (!strcmp(names[i], name)) shim.chosen = i;
  shim.first = first, shim.count = count;
}

static void begin(void) {
  const char *counts = getenv("FAULT_COUNTS"), *trace = getenv("FAULT_TRACE"), *root = getenv("FAULT_ROOT");
  read_fault(getenv("FAULT"));
  shim.directories = getenv("FAULT_DIRECTORIES") != NULL;
  int fd = counts ? (int)syscall(SYS_openat, AT_FDCWD, counts, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
  if (fd >= 0 && !syscall(SYS_ftruncate, fd, sizeof *shim.counts)) {
    void *map = (void *)syscall(SYS_mmap, NULL, sizeof *shim.counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) shim.counts = map;
  }
  if (fd >= 0) syscall(SYS_close, fd);
  if (trace && root && realpath(root, shim.root)) {
    fd = (int)syscall(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    shim.trace = fcntl(fd, F_DUPFD_CLOEXEC, 900); /* away from those that the program counts on */
    syscall(SYS_close, fd);
    shim.root_length = strlen(shim.root);
  }
  backtrace(&(void *){NULL}, 1); /* the first one loads a library */
  atomic_store(&shim.armed, 1);
}

static int (*program_main)(int, char **, char **);
static int armed_main(int argc, char **argv, char **environment) {
  begin();
  int status = program_main(argc, argv, environment);
  atomic_store(&shim.armed, 0);
  return status;
}

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, int (*init)(int, char **, char **),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end) {
  __typeof__(&__libc_start_main) start = (__typeof__(&__libc_start_main))dlsym(RTLD_NEXT, "__libc_start_main");
  program_main = main;
  return start(armed_main, argc, argv, init, fini, rtld_fini, stack_end);
}

/* ---- recording */

static const char *below_root(const char *path, char *full) {
  char parent[PATH_MAX], real[PATH_MAX];
  const char *slash = strrchr(path, '/');
  snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) + (slash == path) : 1, slash ? path : ".");
  if (!realpath(parent, real)) return NULL;
  snprintf(full, PATH_MAX, "%.*s/%.255s", PATH_MAX - 260, real, slash ? slash + 1 : path);
  if (strncmp(full, shim.root, shim.root_length) || full[shim.root_length] != '/') return NULL;
  return full + shim.root_length + 1;
}

static void record(shim_change change, uint64_t file, const char *path, const char *path2, uint64_t offset,
                   const void *data, size_t bytes) {
  shim_record r = {.change = change, .file = file, .offset = offset, .bytes = bytes};
  r.path_bytes = path ? (uint32_t)strlen(path) : 0;
  r.path2_bytes = path2 ? (uint32_t)strlen(path2) : 0;
  pthread_mutex_lock(&trace_lock);
  if (syscall(SYS_write, shim.trace, &r, sizeof r) < 0 || syscall(SYS_write, shim.trace, path, r.path_bytes) < 0 ||
      syscall(SYS_write, shim.trace, path2, r.path2_bytes) < 0 ||
      (data && syscall(SYS_write, shim.trace, data, bytes) < 0))
    abort();
  pthread_mutex_unlock(&trace_lock);
}

/* Records a path as a new name: whoever looks for it must not follow it. */
static void record_path(shim_change change, uint64_t file, const char *path, const char *path2) {
  char full[PATH_MAX], full2[PATH_MAX];
  int number = errno;
  const char *name = below_root(path, full), *name2 = path2 ? below_root(path2, full2) : NULL;
  if (name && (!path2 || name2)) record(change, file, name, name2, 0, NULL, 0);
  errno = number;
}

/* Where an open descriptor is, or NULL when not below the root. */
static const char *path_of(int fd, char *path, struct stat *status) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, PATH_MAX - 1);
  if (n < 0 || own_fstat(fd, status)) return NULL;
  path[n] = 0;
  if (strncmp(path, shim.root, shim.root_length) || (path[shim.root_length] && path[shim.root_length] != '/'))
    return NULL;
  return path[shim.root_length] ? path + shim.root_length + 1 : "";
}

static void record_fd(shim_change change, int fd, int64_t offset, const void *data, size_t bytes) {
  char full[PATH_MAX];
  struct stat status;
  int number = errno;
  const char *path = shim.trace >= 0 ? path_of(fd, full, &status) : NULL;
  if (path) {
    if (change == SHIM_T_SYNC && S_ISDIR(status.st_mode)) change = SHIM_T_SYNC_DIRECTORY;
    if (offset < 0) offset = fcntl(fd, F_GETFL) & O_APPEND ? status.st_size : lseek(fd, 0, SEEK_CUR);
    record(change, status.st_ino, path, NULL, (uint64_t)offset, data, bytes);
  }
  errno = number;
}

static int opened(int fd, const char *path, int there) {
  struct stat status;
  if (fd >= 0 && shim.trace >= 0 && !there && !own_fstat(fd, &status) && S_ISREG(status.st_mode))
    record_path(SHIM_T_CREATE, status.st_ino, path, NULL);
  return fd;
}

/* ---- the calls */

ssize_t write(int fd, const void *data, size_t bytes) {
  if (fails(SHIM_WRITE)) return -1;
  record_fd(SHIM_T_WRITE, fd, -1, data, bytes); /* before: the offset moves */
  return syscall(SYS_write, fd, data, bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
  if (fails(SHIM_WRITE)) return -1;
  record_fd(SHIM_T_WRITE, fd, offset, data, bytes);
  return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

int fsync(int fd) {
  struct stat status;
  if (shim.directories && (own_fstat(fd, &status) || !S_ISDIR(status.st_mode))) return (int)syscall(SYS_fsync, fd);
  if (fails(SHIM_FSYNC)) return -1;
  int failed = (int)syscall(SYS_fsync, fd);
  if (!failed) record_fd(SHIM_T_SYNC, fd, 0, NULL, 0);
  return failed;
}

int rename(const char *from, const char *to) {
  struct stat status = {0};
  int known = !own_lstat(from, &status);
  if ((!shim.directories || S_ISDIR(status.st_mode)) && fails(SHIM_RENAME)) return -1;
  int traced = shim.trace >= 0 && known, failed = (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
  if (!failed && traced) record_path(SHIM_T_RENAME, status.st_ino, from, to);
  return failed;
}

int mkdir(const char *path, mode_t mode) {
  if (fails(SHIM_MKDIR)) return -1;
  int failed = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
  if (!failed && shim.trace >= 0) record_path(SHIM_T_MKDIR, 0, path, NULL);
  return failed;
}

static int removed(int failed, shim_change change, const char *path) {
  if (!failed && shim.trace >= 0) record_path(change, 0, path, NULL);
  return failed;
}

int unlink(const char *path) {
  return fails(SHIM_UNLINK) ? -1 : removed((int)syscall(SYS_unlinkat, AT_FDCWD, path, 0), SHIM_T_UNLINK, path);
}

int rmdir(const char *path) {
  return fails(SHIM_UNLINK) ? -1
                            : removed((int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR), SHIM_T_RMDIR, path);
}

int remove(const char *path) {
  struct stat status;
  return !own_lstat(path, &status) && S_ISDIR(status.st_mode) ? rmdir(path) : unlink(path);
}

int ftruncate(int fd, off_t length) {
  if (fails(SHIM_FTRUNCATE)) return -1;
  int failed = (int)syscall(SYS_ftruncate, fd, length);
  if (!failed) record_fd(SHIM_T_TRUNCATE, fd, length, NULL, 0);
  return failed;
}

static int open_any(const char *path, int flags, mode_t mode) {
  struct stat status;
  if (fails(SHIM_OPEN)) return -1;
  int there = shim.trace < 0 || !own_stat(path, &status);
  int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
  if (fd >= 0 && there && (flags & O_TRUNC)) record_fd(SHIM_T_TRUNCATE, fd, 0, NULL, 0);
  return opened(fd, path, there);
}

#define OPEN(name)                                            \
  int name(const char *path, int flags, ...) {                \
    va_list more;                                             \
    va_start(more, flags);                                    \
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0; \
    va_end(more);                                             \
    return open_any(path, flags, mode);                       \
  }
OPEN(open)
OPEN(open64)

FILE *fopen(const char *path, const char *mode) {
  find_real();
  return fails(SHIM_OPEN) ? NULL : real.fopen(path, mode);
}

DIR *opendir(const char *path) {
  find_real();
  return fails(SHIM_OPEN) ? NULL : real.opendir(path);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  struct stat status;
  int on_disk = fd >= 0 && !own_fstat(fd, &status) && status.st_nlink; /* ENODEV is said of such files only */
  int spared = shim.chosen == SHIM_MMAP && shim.number == ENODEV && !on_disk;
  return !spared && fails(SHIM_MMAP) ? MAP_FAILED : (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return mmap(at, bytes, protection, flags, fd, offset);
}

ssize_t read(int fd, void *data, size_t bytes) { return fails(SHIM_READ) ? -1 : syscall(SYS_read, fd, data, bytes); }

ssize_t pread(int fd, void *data, size_t bytes, off_t offset) {
  return fails(SHIM_PREAD) ? -1 : syscall(SYS_pread64, fd, data, bytes, offset);
}
ssize_t pread64(int fd, void *data, size_t bytes, off_t offset) { return pread(fd, data, bytes, offset); }

struct dirent *readdir(DIR *directory) {
  find_real();
  return fails(SHIM_READDIR) ? NULL : real.readdir(directory);
}

int access(const char *path, int mode) {
  return fails(SHIM_ACCESS) ? -1 : (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

int stat(const char *path, struct stat *status) { return fails(SHIM_STAT) ? -1 : own_stat(path, status); }
int lstat(const char *path, struct stat *status) { return fails(SHIM_STAT) ? -1 : own_lstat(path, status); }
int fstat(int fd, struct stat *status) { return fails(SHIM_STAT) ? -1 : own_fstat(fd, status); }
int fstatat(int fd, const char *path, struct stat *status, int flags) {
  return fails(SHIM_STAT) ? -1 : (int)syscall(SYS_newfstatat, fd, path, status, flags);
}

int flock(int fd, int operation) { return fails(SHIM_FLOCK) ? -1 : (int)syscall(SYS_flock, fd, operation); }

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
  find_real();
  return fails(SHIM_THREAD) ? errno : real.pthread_create(thread, attributes, body, argument);
}

/* ---- memory: by the names that the C library itself exports, because dlsym allocates */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t bytes) { return fails(SHIM_MALLOC) ? NULL : __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return fails(SHIM_MALLOC) ? NULL : __libc_calloc(count, bytes); }
void *realloc(void *old, size_t bytes) { return fails(SHIM_MALLOC) ? NULL : __libc_realloc(old, bytes); }
void *aligned_alloc(size_t alignment, size_t bytes) {
  return fails(SHIM_MALLOC) ? NULL : __libc_memalign(alignment, bytes);
}
int posix_memalign(void **memory, size_t alignment, size_t bytes) {
  if (fails(SHIM_MALLOC)) return errno;
  return (*memory = __libc_memalign(alignment, bytes)) ? 0 : ENOMEM;
}
