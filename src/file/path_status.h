/* Whether a path exists: yes, no, or unknown. Before starting anew, truncating, removing or skipping something, the
 * third answer must not be taken for the second: these functions return it as an error. */
#ifndef CH_FILE_PATH_STATUS_H
#define CH_FILE_PATH_STATUS_H

#include "base/error.h"

/* Whether the target of a path exists, following symbolic links. CHOIR_ERROR_IO: unknown. */
int ch_path_exists(const char *path, int *there);

/* Whether a directory entry with that name exists, including a dangling link. CHOIR_ERROR_IO: unknown. */
int ch_entry_exists(const char *path, int *there);

/* Whether an errno means that the path does not exist. */
int ch_is_absent(int number);

/* Whether the last error, which has this code, means that a file could not be read. Such a file may be intact, so no
 * other file may be used instead. */
int ch_is_unreadable(int code);

/* ---- files that choir itself writes into a run, a checkpoint or a data directory ----
 * They are regular files. A directory from another source may have links in their places, which would lead choir to any
 * file of the user. */

/* Like ch_entry_exists. CHOIR_ERROR_FORMAT: the entry is a link, a directory, a pipe or a device. */
int ch_regular_exists(const char *path, int *there);

/* The same for a directory: RUN/checkpoints. */
int ch_directory_exists(const char *path, int *there);

/* Opens such a file, never through a link: like open(), with mode 0666 for a new file. CHOIR_ERROR_IO,
 * CHOIR_ERROR_FORMAT. */
int ch_open_regular(const char *path, int flags, int *fd);

/* Whether an open file still has that path. CHOIR_ERROR_IO: unknown. */
int ch_is_named(int fd, const char *path, int *named);

/* Whether an open file has further names: hard links, as in a copy by `cp -al`. Such a file also belongs to another
 * run, and is never truncated or written in place. CHOIR_ERROR_IO: unknown. */
int ch_has_other_names(int fd, const char *path, int *others);

/* Whether two paths lead to the same file. */
int ch_same_file(const char *a, const char *b);

/* Calls `each` with every name in a directory except "." and ".."; stops at an error of the callback. CHOIR_ERROR_IO
 * if the directory cannot be read completely. */
int ch_list(const char *directory, int (*each)(void *context, const char *name), void *context);

#endif
