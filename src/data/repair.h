#ifndef CH_DATA_REPAIR_H
#define CH_DATA_REPAIR_H

#include <stddef.h>
#include <stdint.h>

/* Replaces parts of a line that carry no text and that JSON does not allow: numbers that only Python's json writes
 * (NaN, 1e999) become 0, a trailing comma a space, a NUL in a key U+FFFD; and, if `replaced` counts them, half a
 * surrogate pair U+FFFD. Returns whether anything changed. */
int ch_json_repair(char *line, size_t size, uint64_t *replaced);

#endif
