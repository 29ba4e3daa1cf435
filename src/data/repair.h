#ifndef CH_DATA_REPAIR_H
#define CH_DATA_REPAIR_H

#include <stddef.h>
#include <stdint.h>

/* Changes in a line what is nobody's text and JSON does not know: numbers of any kind as Python's json writes them
 * (NaN, 1e999) become 0, a trailing comma a space, a NUL in a key U+FFFD; and where `replaced` counts them, half a
 * surrogate pair U+FFFD. Whether any. */
int ch_json_repair(char *line, size_t size, uint64_t *replaced);

#endif
