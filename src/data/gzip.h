/* gzip files (dictzip too, and several members in a row) by zlib: libarchive reads them as well, but does not compare
 * checksums. */
#ifndef CH_DATA_GZIP_H
#define CH_DATA_GZIP_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct ch_gzip ch_gzip;

/* *gzip NULL and no error: the file is no gzip file. */
int ch_gzip_open(const char *path, ch_gzip **gzip);
/* As ch_input_read; errors without the file's name. */
int ch_gzip_read(ch_gzip *gzip, const void **data, size_t *size);
uint64_t ch_gzip_consumed(const ch_gzip *gzip);
void ch_gzip_close(ch_gzip *gzip);

#endif
