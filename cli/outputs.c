/* What is wrong with an output is said before the work, which may take hours: the library finds it when it writes. Only
 * the first of several processes writes. */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

/* Whether the directory above takes a new name; that above what a link means is left to the library. */
static int check_parent(const char *path, const char *what) {
  char parent[4096];
  struct stat status;
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') length--;
  while (length && path[length - 1] != '/') length--;
  if (length >= sizeof parent || (!lstat(path, &status) && S_ISLNK(status.st_mode))) return 0;
  snprintf(parent, sizeof parent, "%.*s", length ? (int)length : 1, length ? path : ".");
  return access(parent, W_OK | X_OK) ? cli_fail_with("%s: cannot be %s: %s", path, what, strerror(errno)) : 0;
}

int cli_check_file(const char *path) {
  struct stat status;
  if (!cli_ranks_first()) return 0;
  if (!stat(path, &status) && !S_ISREG(status.st_mode))
    return cli_fail_with("%s: is there and not a regular file", path);
  return check_parent(path, "written");
}

int cli_check_new(const char *path) {
  struct stat status;
  int found = 0;
  if (!cli_ranks_first()) return 0;
  if (!stat(path, &status) && !S_ISDIR(status.st_mode)) return cli_fail_with("%s: exists and is not a directory", path);
  DIR *stream = opendir(path);
  for (struct dirent *entry; stream && !found && (entry = readdir(stream));)
    found = strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
  if (stream) closedir(stream);
  if (found) return cli_fail_with("%s: exists already and is not empty; remove it or choose another name", path);
  return check_parent(path, "created");
}
