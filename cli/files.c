/* Input names as lists of files; a directory stands for all files below it. */
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

/* Sorts by the bytes of the names: the same order on every machine. */
static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

/* Kinds of directory entries that are skipped. */
enum { LINKED, DEAD, DOTTED, ODD, KINDS };
typedef struct passed {
  int count[KINDS];
  char *first[KINDS];
} passed;

/* The kind of a skipped entry; KINDS: it is not skipped. */
static int passed_as(const FTSENT *at) {
  struct stat target;
  int link = at->fts_info == FTS_SL || at->fts_info == FTS_SLNONE;
  if (!at->fts_level || (!link && at->fts_info != FTS_F && at->fts_info != FTS_D && at->fts_info != FTS_DEFAULT))
    return KINDS;
  if (at->fts_name[0] == '.') return DOTTED;
  if (!link) return at->fts_info == FTS_DEFAULT ? ODD : KINDS;
  if (stat(at->fts_accpath, &target)) return DEAD;
  return S_ISDIR(target.st_mode) ? LINKED : S_ISREG(target.st_mode) ? KINDS : ODD;
}

/* Counts a skipped entry. A pattern applies to files only, not to directories. */
static void pass_over(const FTSENT *at, const char *pattern, passed *p) {
  int kind = passed_as(at);
  if (kind == KINDS) return;
  if (pattern && kind != LINKED && at->fts_info != FTS_D && fnmatch(pattern, at->fts_name, 0)) return;
  if (!p->count[kind]++) p->first[kind] = strdup(at->fts_path);
}

/* Reports skipped entries, so that no part of a corpus is omitted silently. */
static void say_passed(const char *path, const passed *p) {
  static const char *const what[KINDS][2] = {
      [LINKED] = {"link to a directory", "links to directories"},
      [DEAD] = {"link that cannot be followed", "links that cannot be followed"},
      [DOTTED] = {"name that begins with a dot", "names that begin with a dot"},
      [ODD] = {"name that is no file's", "names that are no files'"},
  };
  for (int kind = 0; kind < KINDS; kind++) {
    char line[1024];
    int count = p->count[kind];
    if (count) {
      snprintf(line, sizeof line, "%.300s: left out: %d %s, %s%.300s%s\n", cli_shown(path), count,
               what[kind][count > 1], count > 1 ? "the first " : "", p->first[kind] ? cli_shown(p->first[kind]) : "?",
               kind == LINKED ? "; name each to have it read" : "");
      cli_print_notices(line);
    }
    free(p->first[kind]);
  }
}

/* Whether an entry is an input. Names that begin with a dot are skipped, as by a shell's *; links are followed to
 * files, not to directories. */
static int wanted(const FTSENT *at, const char *pattern) {
  struct stat target;
  int file =
      at->fts_info == FTS_F || (at->fts_info == FTS_SL && !stat(at->fts_accpath, &target) && S_ISREG(target.st_mode));
  return file && at->fts_name[0] != '.' && (!pattern || !fnmatch(pattern, at->fts_name, 0));
}

static int add_directory(cli_files *files, const char *path, const char *pattern) {
  char *const roots[] = {(char *)path, NULL};
  size_t before = files->list.size;
  passed left = {0};
  int status = 0;
  FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
  if (!walk) return cli_fail_with("%s: cannot be read", cli_shown(path));
  for (FTSENT *at; !status && (at = fts_read(walk));) {
    if (at->fts_info == FTS_D && at->fts_level && at->fts_name[0] == '.') fts_set(walk, at, FTS_SKIP);
    if (at->fts_info == FTS_DNR || at->fts_info == FTS_ERR || at->fts_info == FTS_NS)
      status = cli_fail_with("%s: %s", cli_shown(at->fts_path), strerror(at->fts_errno));
    else if (wanted(at, pattern))
      status = push(files, at->fts_path);
    else
      pass_over(at, pattern, &left);
  }
  fts_close(walk);
  say_passed(path, &left);
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
