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
  char path[4096]; /* "" while there is none */
  int lock;        /* descriptor of the mark */
} ch_temporary;

/* Makes one in `parent`, after it has removed what the dead left there. 0, or -1 with errno. */
int ch_temporary_make(ch_temporary *temporary, const char *parent);
/* Makes a staging directory beside `target`; writes to `inside` the path that target gets within it (not created). */
int ch_temporary_next_to(ch_temporary *temporary, const char *target, char *inside, size_t size);
/* Removes the directory with all files in it, and keeps errno. Does nothing if it was never made. */
void ch_temporary_remove(ch_temporary *temporary);

/* Removes what killed processes left in a directory: whatever has the name, the mark inside, this user for an owner,
 * no living maker, and this host's number in its name: locks may not reach other hosts. Best effort: it costs room,
 * nothing else. */
void ch_temporary_clean(const char *directory);

/* The path is of something inside such a directory. */
int ch_temporary_holds(const char *path);

/* "DIRECTORY/NAME", good until the block ends that asks for it. */
enum { CH_PATH_BYTES = 4096 + 64 };
#define CH_IN(directory, name) ch_path_in((char[CH_PATH_BYTES]){0}, directory, name)
const char *ch_path_in(char *path, const char *directory, const char *name);

/* The directory that holds `path`; "." for a bare name. */
void ch_path_parent(const char *path, char *parent, size_t size);

/* Where a symbolic link (of links ...) at `path` points, also to what is not there yet; `path` itself otherwise.
 * CHOIR_ERROR_IO: links without an end; CHOIR_ERROR_ARGUMENT: too long for `size` or empty. */
int ch_path_resolve(const char *path, char *target, size_t size);

/* ---- writes that outlive a crash of the machine ---- */

/* fsync of a file or directory by its path. File systems that know no fsync of directories (EINVAL, ENOTSUP) keep such
 * promises in their own way, or not at all: no error. 0, or -1 with errno. */
int ch_sync(const char *path);

/* Makes a rename or a new file in the directory that holds `path` outlive a crash. */
int ch_sync_parent(const char *path);

/* The error for a failed write to `path`: a full disk or quota says how much was needed (0: not known). number: errno.
 */
int ch_write_error(int number, const char *path, uint64_t needed);

/* The same before anything is written: "PATH: cannot be WHAT", unless there is no room. */
int ch_begin_error(int number, const char *path, const char *what);

/* Whether an errno says that there is no room for now, and may be later. */
int ch_is_full(int number);

#endif
