/* Well-formed UTF-8: RFC 3629, so no surrogates, no overlong forms, nothing above U+10FFFF. */
#ifndef CH_DATA_UTF8_H
#define CH_DATA_UTF8_H

#include <stddef.h>

/* Length of the longest well-formed start of text[0,size): `size` when all of it is. */
size_t ch_utf8_valid(const char *text, size_t size);

/* The last place <= `at` where text may be cut without cutting a character; never 0. */
size_t ch_utf8_cut(const char *text, size_t at);

#endif
