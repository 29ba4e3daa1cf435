/* All conversion between numbers and text: files, messages and options must not depend on the host program's locale
 * (decimal comma). tests/arrows.sh refuses conversions of floating-point numbers elsewhere. */
#ifndef CH_BASE_FORMAT_H
#define CH_BASE_FORMAT_H

#include <locale.h>
#include <stdarg.h>
#include <stddef.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* snprintf and vsnprintf with a decimal point in every locale. They allocate nothing after the first call. */
int ch_format(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
int ch_vformat(char *text, size_t size, const char *format, va_list args) __attribute__((format(printf, 3, 0)));

/* strtod with a decimal point in every locale. */
double ch_number(const char *text, char **end);

/* The shortest text that parses to the same number; `size` at least 32. */
void ch_format_exact(char *text, size_t size, double value);

/* The "C" locale, for uselocale around calls of locale-dependent libraries. */
locale_t ch_plain_locale(void);

CHOIR_C_END

#endif
