#include "file/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/path_status.h"
#include "file/temporary.h"

/* Copies the directory's name without trailing slashes. */
static int name_dir(ch_dir *dir, const char *path) {
  *dir = (ch_dir){.place.lock = -1};
  int length = snprintf(dir->path, sizeof dir->path, "%s", path);
  while (length > 1 && length < (int)sizeof dir->path && dir->path[length - 1] == '/') dir->path[--length] = 0;
  if (!length || length >= (int)sizeof dir->path)
    return ch_error(CHOIR_ERROR_ARGUMENT, "'%.100s': not a usable directory name (%d bytes)", path, length);
  return CHOIR_OK;
}

static int make_place(ch_dir *dir) {
  return ch_temporary_next_to(&dir->place, dir->target, dir->temporary, sizeof dir->temporary);
}

/* Some file systems (gcsfuse) cannot rename directories: this detects them before the work and not after it. */
static int try_rename(const char *path, const char *place) {
  char from[CH_PATH_BYTES], to[CH_PATH_BYTES];
  ch_path_in(from, place, "choir-tries-to-rename");
  ch_path_in(to, place, "choir-has-renamed");
  if (mkdir(from, 0700)) return ch_begin_error(errno, path, "created");
  int failed = rename(from, to), number = errno;
  rmdir(failed ? from : to);
  if (!failed) return CHOIR_OK;
  if (number != ENOSYS && number != EXDEV && number != EOPNOTSUPP && number != EINVAL)
    return ch_begin_error(number, path, "created");
  return ch_error(CHOIR_ERROR_IO,
                  "%s: its file system cannot rename directories (%s), as choir does with whole ones; choose a path on "
                  "another file system",
                  path, strerror(number));
}

int ch_dir_try(const char *parent) {
  ch_temporary place;
  if (ch_temporary_make(&place, parent)) return ch_begin_error(errno, parent, "written");
  int code = try_rename(parent, place.path);
  ch_temporary_remove(&place);
  return code;
}

static int is_mount_point(const char *path, const struct stat *status) {
  char parent[4096];
  struct stat above;
#ifdef STATX_ATTR_MOUNT_ROOT /* musl does not define it */
  struct statx x;
  if (!statx(AT_FDCWD, path, 0, 0, &x) && (x.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT))
    return (x.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
#endif
  ch_path_parent(path, parent, sizeof parent);
  return !stat(parent, &above) && above.st_dev != status->st_dev;
}

static int occupied(void *context, const char *name) {
  const ch_dir *dir = context;
  (void)name;
  return ch_error(CHOIR_ERROR_IO, "%s: exists already and is not empty; remove it or choose another name", dir->path);
}

/* Checks that the final rename can succeed. *mode: mode of the new directory. */
static int check_target(ch_dir *dir, mode_t *mode) {
  struct stat status;
  *mode = 0777;
  if (stat(dir->target, &status))
    return ch_is_absent(errno) ? CHOIR_OK : ch_error_errno("%s: cannot check whether the path exists", dir->path);
  if (!S_ISDIR(status.st_mode)) return ch_error(CHOIR_ERROR_IO, "%s: exists and is not a directory", dir->path);
  CH_TRY(ch_list(dir->target, occupied, dir));
  if (is_mount_point(dir->target, &status))
    return ch_error(CHOIR_ERROR_IO, "%s: is a mount point, which cannot be replaced; name a new directory in it",
                    dir->path);
  *mode = status.st_mode & 07777;
  return CHOIR_OK;
}

int ch_dir_begin(ch_dir *dir, const char *path) {
  mode_t mode;
  CH_TRY(name_dir(dir, path));
  CH_TRY(ch_path_resolve(dir->path, dir->target, sizeof dir->target));
  CH_TRY(check_target(dir, &mode));
  int failed = make_place(dir), code = failed ? CHOIR_OK : try_rename(dir->path, dir->place.path);
  if (code) return ch_temporary_remove(&dir->place), code;
  failed = failed || mkdir(dir->temporary, mode) || (mode != 0777 && chmod(dir->temporary, mode));
  if (!failed) return CHOIR_OK;
  ch_temporary_remove(&dir->place);
  return ch_begin_error(errno, dir->path, "created");
}

static int sync_entry(const char *path, const struct stat *status, int flag, struct FTW *place) {
  (void)status, (void)place;
  return flag == FTW_SL ? 0 : ch_sync(path);
}

int ch_dir_commit(ch_dir *dir) {
  int failed = nftw(dir->temporary, sync_entry, 16, FTW_DEPTH | FTW_PHYS) || rename(dir->temporary, dir->target);
  int number = errno, code = failed ? CHOIR_OK : ch_sync_parent(dir->target);
  ch_temporary_remove(&dir->place);
  if (!failed) return code;
  return number == ENOTEMPTY || number == EEXIST ? occupied(dir, NULL) : ch_write_error(number, dir->path, 0);
}

int ch_dir_end(ch_dir *dir, int code) {
  if (!code) return ch_dir_commit(dir);
  ch_temporary_remove(&dir->place);
  return code;
}

/* Creates a directory unless it exists. The parent of a new one is fsynced, because a checkpoint in it must outlive
 * a loss of power; without permission to read the parent this is not possible and is skipped. */
static int make_one(const char *path) {
  char parent[4096];
  if (mkdir(path, 0777)) return errno == EEXIST ? CHOIR_OK : ch_error_errno("%s: cannot be created", path);
  ch_path_parent(path, parent, sizeof parent);
  return ch_sync(parent) && errno != EACCES ? ch_write_error(errno, parent, 0) : CHOIR_OK;
}

int ch_dir_make(const char *path) {
  char part[4096];
  if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", path);
  for (char *slash = part; *slash && (slash = strchr(slash + 1, '/'));) {
    *slash = 0;
    CH_TRY(make_one(part));
    *slash = '/';
  }
  struct stat status;
  CH_TRY(make_one(part));
  if (stat(path, &status) || !S_ISDIR(status.st_mode))
    return ch_error(CHOIR_ERROR_IO, "%s: exists and is not a directory", path);
  return CHOIR_OK;
}

int ch_dir_remove(const char *path) {
  ch_dir dir;
  CH_TRY(name_dir(&dir, path));
  strcpy(dir.target, dir.path);
  int failed = make_place(&dir) || rename(dir.target, dir.temporary);
  ch_temporary_remove(&dir.place);
  return failed ? ch_error_errno("%s: cannot be removed", dir.path) : CHOIR_OK;
}
