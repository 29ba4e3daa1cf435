/* Repairs JSON lines: values that people and programs write and that JSON does not allow. */
#include "data/repair.h"

#include <string.h>

/* The UTF-16 code unit of "\uXXXX" at p; 0: none. */
static unsigned unit_at(const char *p, const char *end) {
  unsigned unit = 0;
  if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return 0;
  for (int i = 2; i < 6; i++) {
    const char *digit = p[i] ? strchr("0123456789abcdefABCDEF", p[i]) : NULL;
    if (!digit) return 0;
    long value = digit - "0123456789abcdefABCDEF";
    unit = unit * 16 + (unsigned)(value > 15 ? value - 6 : value);
  }
  return unit;
}

/* Whether the comma at p follows the last value of an object or array, as people write it. */
static int is_trailing(const char *p, const char *end) {
  if (*p++ != ',') return 0;
  while (p < end && memchr(" \t\r\n", *p, 4)) p++;
  return p < end && (*p == '}' || *p == ']');
}

static int is_key(const char *behind, const char *end) {
  while (behind < end && memchr(" \t\r\n", *behind, 4)) behind++;
  return behind < end && *behind == ':';
}

/* Replaces a NUL in a key, which jansson accepts in values only, by U+FFFD. */
static int repair_key(char *p, const char *end) {
  int changed = 0;
  while (p < end)
    if (*p == '\\' && end - p >= 6 && !memcmp(p, "\\u0000", 6)) {
      memcpy(p, "\\ufffd", 6);
      p += 6, changed = 1;
    } else {
      p += 1 + (*p == '\\');
    }
  return changed;
}

int ch_json_repair(char *line, size_t size, uint64_t *replaced) {
  int inside = 0, changed = 0;
  char *begin = line; /* begin of the string that contains p */
  for (char *p = line, *end = p + size; p < end;) {
    char *from = p;
    unsigned unit = inside ? unit_at(p, end) : 0, next = unit ? unit_at(p + 6, end) : 0;
    if (unit >= 0xD800 && unit < 0xDC00 && next >= 0xDC00 && next < 0xE000) {
      p += 12;
    } else if (unit >= 0xD800 && unit < 0xE000 && replaced) {
      memcpy(p, "\\ufffd", 6);
      p += 6, changed = 1, ++*replaced;
    } else if (inside && *p == '\\') {
      p += 2;
    } else if (!inside && memchr("-0123456789NI", *p, 13)) {
      while (p < end && memchr("+-.0123456789eEINafinty", *p, 23)) *p++ = ' ';
      *from = '0', changed = 1;
    } else if (!inside && is_trailing(p, end)) {
      *p++ = ' ', changed = 1;
    } else if (*p++ == '"') {
      if (inside && is_key(p, end)) changed |= repair_key(begin, p);
      inside = !inside, begin = p;
    }
  }
  return changed;
}
