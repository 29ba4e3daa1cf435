/* The one door for numbers in text: a host program may have set a locale with a decimal comma, and no file, message or
 * option of ours may follow it. tests/arrows.sh refuses conversions of floating-point numbers elsewhere. */
#ifndef CH_BASE_FORMAT_H
#define CH_BASE_FORMAT_H

#include <locale.h>
#include <stdarg.h>
#include <stddef.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* snprintf and vsnprintf with a decimal point, whatever the locale is. They allocate nothing after the first
 * call. */
int ch_format(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
int ch_vformat(char *text, size_t size, const char *format, va_list args) __attribute__((format(printf, 3, 0)));

/* strtod with a decimal point, whatever the locale is. */
double ch_number(const char *text, char **end);

/* A number with as few digits as give it again; `size` at least 32. */
void ch_format_exact(char *text, size_t size, double value);

/* "C", for uselocale around a library that takes numbers or capitals by the locale. */
locale_t ch_plain_locale(void);

CHOIR_C_END

#endif
