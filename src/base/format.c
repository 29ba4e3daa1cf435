#include "base/format.h"

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static locale_t plain;
static void make_plain(void) { plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

/* The "C" locale is built in: making it cannot fail. */
locale_t ch_plain_locale(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_plain);
  return plain;
}

int ch_vformat(char *text, size_t size, const char *format, va_list args) {
  locale_t before = uselocale(ch_plain_locale()); /* of this thread only */
  int length = vsnprintf(text, size, format, args);
  uselocale(before);
  return length;
}

int ch_format(char *text, size_t size, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int length = ch_vformat(text, size, format, args);
  va_end(args);
  return length;
}

double ch_number(const char *text, char **end) { return strtod_l(text, end, ch_plain_locale()); }

void ch_format_exact(char *text, size_t size, double value) {
  static const int digits[] = {10, 15, 17};
  for (size_t i = 0; i < sizeof digits / sizeof *digits; i++) {
    ch_format(text, size, "%.*g", digits[i], value);
    if (ch_number(text, NULL) == value) return;
  }
}
