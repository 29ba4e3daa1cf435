#include "base/printable.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The well-formed UTF-8 character at p: its length and number; 0: none begins there. */
static size_t character(const unsigned char *p, size_t size, uint32_t *number) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  size_t length = p[0] < 0x80 ? 1 : p[0] < 0xC0 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : p[0] < 0xF8 ? 4 : 0;
  if (!length || length > size) return 0;
  *number = length == 1 ? p[0] : p[0] & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; i++) {
    if ((p[i] & 0xC0) != 0x80) return 0;
    *number = *number << 6 | (p[i] & 0x3F);
  }
  int surrogate = *number >= 0xD800 && *number < 0xE000;
  return *number < least[length] || *number > 0x10FFFF || surrogate ? 0 : length;
}

static int obeyed(uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x061C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

/* Fills `shown` with what stands for one character or byte; returns how many bytes of the text it took. */
static size_t show(const unsigned char *p, size_t size, int lines, char shown[16]) {
  uint32_t c = 0;
  size_t length = character(p, size, &c);
  if (!length) return (size_t)(snprintf(shown, 16, "\\x%02X", p[0]) > 0);
  if (!obeyed(c) || (lines && (c == '\n' || c == '\t'))) {
    memcpy(shown, p, length);
    shown[length] = 0;
  } else if (c == '\n' || c == '\t' || c == '\r') {
    snprintf(shown, 16, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
  } else {
    snprintf(shown, 16, c < 0x80 ? "\\x%02X" : "\\u%04X", c);
  }
  return length;
}

size_t ch_printable(const char *text, size_t size, int lines, char *out, size_t room) {
  size_t whole = 0, used = 0;
  int full = 0;
  for (size_t at = 0; at < size;) {
    char shown[16];
    at += show((const unsigned char *)text + at, size - at, lines, shown);
    size_t length = strlen(shown);
    full |= whole + length >= room;
    if (!full) memcpy(out + whole, shown, length), used = whole + length;
    whole += length;
  }
  if (room) out[used] = 0;
  return whole;
}
