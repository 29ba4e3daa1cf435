/* Text from files, for terminals and logs. */
#ifndef CH_BASE_PRINTABLE_H
#define CH_BASE_PRINTABLE_H

#include <stddef.h>

/* Writes text so that a terminal shows all of it and obeys none: control characters become \n, \t, \x1B; C1 controls,
 * separators of lines and marks that turn the direction of writing \u009B, \u2028, \u202E; bytes that are not UTF-8
 * \xFF. lines: nonzero leaves line ends and tabs as they are. At most room-1 bytes and a NUL, never half an escape or a
 * character. Returns the length of the whole, as snprintf does. */
size_t ch_printable(const char *text, size_t size, int lines, char *out, size_t room);

#endif
