/* Staging directories PARENT/.choir-tmp-PID-NUMBER for outputs before they get their final names. A mark file inside
 * identifies the directory as choir's. Its process keeps the mark locked, so that later processes recognise leftovers
 * of killed ones, from any machine or container that sees the directory. */
#ifndef CH_FILE_TEMPORARY_H
#define CH_FILE_TEMPORARY_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define CH_TEMPORARY_PREFIX ".choir-tmp-"

typedef struct ch_temporary {
  char path[4096]; /* "" if not created */
  int lock;        /* descriptor of the mark file */
} ch_temporary;

/* Creates a staging directory in `parent`, after removing leftovers of killed processes. 0, or -1 with errno. */
int ch_temporary_make(ch_temporary *temporary, const char *parent);
/* Creates a staging directory next to `target`; writes to `inside` the path that target has within it (not created). */
int ch_temporary_next_to(ch_temporary *temporary, const char *target, char *inside, size_t size);
/* Removes the directory with all files in it; preserves errno. Does nothing if it was never created. */
void ch_temporary_remove(ch_temporary *temporary);

/* Removes leftovers of killed processes in a directory: staging directories with a mark file, owned by this user,
 * whose process is dead, and whose name has this host's number, since locks may not reach other hosts. Best effort: a
 * remaining one only costs disk space. */
void ch_temporary_clean(const char *directory);

/* Whether the path is inside a staging directory. */
int ch_temporary_holds(const char *path);

/* "DIRECTORY/NAME", valid until the enclosing block ends. */
enum { CH_PATH_BYTES = 4096 + 64 };
#define CH_IN(directory, name) ch_path_in((char[CH_PATH_BYTES]){0}, directory, name)
const char *ch_path_in(char *path, const char *directory, const char *name);

/* The directory that holds `path`; "." for a bare name. */
void ch_path_parent(const char *path, char *parent, size_t size);

/* The target of a symbolic link (of links ...) at `path`, which need not exist; `path` itself if it is not a link.
 * CHOIR_ERROR_IO: a cycle of links; CHOIR_ERROR_ARGUMENT: too long for `size`, or empty. */
int ch_path_resolve(const char *path, char *target, size_t size);

/* ---- writes that survive a crash of the machine ---- */

/* fsync of a file or directory by its path. File systems without fsync of directories (EINVAL, ENOTSUP) are not an
 * error. 0, or -1 with errno. */
int ch_sync(const char *path);

/* Makes a rename or a new file in the directory of `path` survive a crash. */
int ch_sync_parent(const char *path);

/* The error for a failed write to `path`; for a full disk or quota it has the needed size (0: unknown). number:
 * errno. */
int ch_write_error(int number, const char *path, uint64_t needed);

/* The same before anything is written: "PATH: cannot be WHAT", or the error of a full disk. */
int ch_begin_error(int number, const char *path, const char *what);

/* Whether an errno means that there is temporarily no space. */
int ch_is_full(int number);

#endif
