/* Makes writes outlive a crash of the machine, and words the errors where they fail. */
#ifndef CH_FILE_SYNC_H
#define CH_FILE_SYNC_H

#include <stdint.h>

#include "base/error.h"

/* fsync of a file or directory by its path. File systems that know no fsync of directories (EINVAL, ENOTSUP) keep such
 * promises in their own way, or not at all: no error. 0, or -1 with errno. */
int ch_sync(const char *path);

/* Makes a rename or a new file in the directory that holds `path` outlive a crash. */
int ch_sync_parent(const char *path);

/* The error for a failed write to `path`: a full disk or quota says how much was needed (0: not known). number: errno.
 */
int ch_write_error(int number, const char *path, uint64_t needed);

#endif
