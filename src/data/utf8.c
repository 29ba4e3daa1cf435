#include "data/utf8.h"

#include <stdint.h>
#include <string.h>

static int continues(unsigned char c) { return (c & 0xC0) == 0x80; }

/* Length of the well-formed character at s, 0 if there is none. The second byte's range is what excludes overlong forms
 * (after E0, F0), surrogates (after ED) and what lies above U+10FFFF (after F4). */
static size_t character(const unsigned char *s, size_t size) {
  unsigned char c = s[0];
  if (c < 0x80) return 1;
  if (c < 0xC2 || c > 0xF4) return 0;
  size_t length = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
  if (size < length) return 0;
  unsigned char low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
  if (s[1] < low || s[1] > high) return 0;
  for (size_t i = 2; i < length; i++)
    if (!continues(s[i])) return 0;
  return length;
}

size_t ch_utf8_valid(const char *text, size_t size) {
  const unsigned char *s = (const unsigned char *)text;
  size_t i = 0;
  while (i < size) {
    uint64_t word;
    if (size - i >= 8 && (memcpy(&word, s + i, 8), !(word & UINT64_C(0x8080808080808080)))) {
      i += 8; /* most text is ASCII */
      continue;
    }
    size_t length = character(s + i, size - i);
    if (!length) return i;
    i += length;
  }
  return size;
}

size_t ch_utf8_cut(const char *text, size_t at) {
  for (size_t back = 0; back < 4 && back < at; back++)
    if (!continues((unsigned char)text[at - back])) return at - back;
  return at; /* not UTF-8: any place will do */
}
