/* Inputs by name: files, and directories for all files below them. */
#include <fnmatch.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

static int push(cli_files *files, const char *name) {
  char *copy = name ? strdup(name) : NULL;
  if ((name && !copy) || ch_buffer_append(&files->list, &copy, sizeof copy)) {
    free(copy);
    return cli_fail_with("out of memory");
  }
  files->names = (void *)files->list.data;
  return 0;
}

/* The same order on every machine: by the bytes of the names. */
static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

/* Names that begin with a dot are passed over, as a shell's * does; links are followed to files, not to directories. */
static int wanted(const FTSENT *at, const char *pattern) {
  struct stat target;
  int file =
      at->fts_info == FTS_F || (at->fts_info == FTS_SL && !stat(at->fts_accpath, &target) && S_ISREG(target.st_mode));
  return file && at->fts_name[0] != '.' && (!pattern || !fnmatch(pattern, at->fts_name, 0));
}

static int add_directory(cli_files *files, const char *path, const char *pattern) {
  char *const roots[] = {(char *)path, NULL};
  size_t before = files->list.size;
  int status = 0;
  FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
  if (!walk) return cli_fail_with("%s: cannot be read", cli_shown(path));
  for (FTSENT *at; !status && (at = fts_read(walk));) {
    if (at->fts_info == FTS_D && at->fts_level && at->fts_name[0] == '.') fts_set(walk, at, FTS_SKIP);
    if (at->fts_info == FTS_DNR || at->fts_info == FTS_ERR || at->fts_info == FTS_NS)
      status = cli_fail_with("%s: %s", cli_shown(at->fts_path), strerror(at->fts_errno));
    else if (wanted(at, pattern))
      status = push(files, at->fts_path);
  }
  fts_close(walk);
  if (!status && files->list.size == before)
    status = cli_fail_with("%s: no file in it%s%s", cli_shown(path), pattern ? " has a name like " : "",
                           pattern ? cli_shown(pattern) : "");
  return status;
}

int cli_files_add(cli_files *files, const char *path, const char *pattern) {
  struct stat status;
  return !stat(path, &status) && S_ISDIR(status.st_mode) ? add_directory(files, path, pattern) : push(files, path);
}

int cli_files_end(cli_files *files) { return push(files, NULL); }

void cli_files_free(cli_files *files) {
  for (size_t i = 0; i < files->list.size / sizeof *files->names; i++) free((char *)files->names[i]);
  free(files->list.data);
  *files = (cli_files){0};
}
