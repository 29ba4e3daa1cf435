/* Whether something is there: yes, no, or nobody can tell. Whoever asks in order to begin anew, to cut, to remove or to
 * leave out must not take the third answer for the second: these functions give it as an error. */
#ifndef CH_FILE_PATH_STATUS_H
#define CH_FILE_PATH_STATUS_H

#include "base/error.h"

/* What a path leads to, by links where the user has made some. CHOIR_ERROR_IO: it cannot be told. */
int ch_path_exists(const char *path, int *there);

/* Whether a directory has an entry of that name, a link that leads nowhere too. CHOIR_ERROR_IO: it cannot be told. */
int ch_entry_exists(const char *path, int *there);

/* Whether an errno says that nothing has that name. */
int ch_is_absent(int number);

/* Whether the last error, which has this code, says that a file could not be read. Such a file may be whole: nobody may
 * take another in its place. */
int ch_is_unreadable(int code);

/* ---- files that choir itself put into a run, a checkpoint or a directory of data ----
 * They are regular files. A directory that somebody else made may have links in their places, which would lead choir
 * to any file of the user's. */

/* As ch_entry_exists. CHOIR_ERROR_FORMAT: there is a link or a directory, a pipe, a device of that name. */
int ch_regular_exists(const char *path, int *there);

/* The same of a directory: RUN/checkpoints. */
int ch_directory_exists(const char *path, int *there);

/* Opens such a file, never through a link: as open(), with mode 0666 for a new one. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT.
 */
int ch_open_regular(const char *path, int flags, int *fd);

/* Whether an open file still has that name. CHOIR_ERROR_IO: it cannot be told. */
int ch_is_named(int fd, const char *path, int *named);

/* Whether an open file has names beside its own: hard links, as in a copy by `cp -al`. Such a file is another run's,
 * too, and is never cut or written in place. CHOIR_ERROR_IO: it cannot be told. */
int ch_has_other_names(int fd, const char *path, int *others);

/* Whether two paths lead to the same file. */
int ch_same_file(const char *a, const char *b);

/* Calls `each` with every name in a directory but "." and ".."; stops at an error of its own. CHOIR_ERROR_IO where the
 * directory cannot be read to its end. */
int ch_list(const char *directory, int (*each)(void *context, const char *name), void *context);

#endif
