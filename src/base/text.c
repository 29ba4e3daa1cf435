#include "base/text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int continues(unsigned char c) { return (c & 0xC0) == 0x80; }

/* Length of the well-formed character at s, 0 if there is none. The range of the second byte excludes overlong forms
 * (after E0, F0), surrogates (after ED) and code points above U+10FFFF (after F4). */
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
  return at; /* not UTF-8: cut anywhere */
}

size_t ch_utf8_mark(const char *text, size_t size) { return size >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3) ? 3 : 0; }

/* ---- lines ---- */

int ch_lines_next(ch_lines *lines, ch_value *line) {
  if (!lines->number) lines->text += ch_utf8_mark(lines->text, (size_t)(lines->end - lines->text));
  if (lines->text >= lines->end) return 0;
  size_t left = (size_t)(lines->end - lines->text);
  const char *stop = memchr(lines->text, '\n', left);
  *line = (ch_value){lines->text, stop ? (size_t)(stop - lines->text) : left};
  lines->text = stop ? stop + 1 : lines->end;
  lines->number++;
  if (line->size && line->text[line->size - 1] == '\r') line->size--;
  return 1;
}

/* ---- for terminals ---- */

static int obeyed(uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x061C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

/* Writes one character or byte, escaped if needed, to `shown`; returns the number of bytes read. */
static size_t show_char(const unsigned char *p, size_t size, int lines, char shown[16]) {
  size_t length = character(p, size);
  if (!length) return (size_t)(snprintf(shown, 16, "\\x%02X", p[0]) > 0);
  uint32_t c = length == 1 ? p[0] : p[0] & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; i++) c = c << 6 | (p[i] & 0x3F);
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

size_t ch_printable(const char *text, size_t size, int lines, char *out, size_t capacity) {
  size_t whole = 0, used = 0;
  int full = 0;
  for (size_t at = 0; at < size;) {
    char shown[16];
    at += show_char((const unsigned char *)text + at, size - at, lines, shown);
    size_t length = strlen(shown);
    full |= whole + length >= capacity;
    if (!full) memcpy(out + whole, shown, length), used = whole + length;
    whole += length;
  }
  if (capacity) out[used] = 0;
  return whole;
}

/* ---- known words ---- */

enum { LONGEST = 64 };

static int min(int a, int b) { return a < b ? a : b; }

/* Optimal string alignment: insertions, deletions, substitutions and swaps of neighbors, each 1. If the distance
 * exceeds `farthest`, returns some number above `farthest`. */
static int distance(const char *a, const char *b, int farthest) {
  int m = (int)strlen(a), n = (int)strlen(b);
  int rows[3][LONGEST + 1]; /* the last three rows of the dynamic programming table */
  if (n > LONGEST || abs(m - n) > farthest) return farthest + 1;
  for (int j = 0; j <= n; j++) rows[0][j] = j;
  for (int i = 1; i <= m; i++) {
    int *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3], smallest_value = i;
    now[0] = i;
    for (int j = 1; j <= n; j++) {
      now[j] = min(min(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = min(now[j], before[j - 2] + 1);
      smallest_value = min(smallest_value, now[j]);
    }
    if (smallest_value > farthest) return smallest_value; /* later rows cannot have a smaller value */
  }
  return rows[m % 3][n];
}

/* The nearest known word within `farthest` edits, or NULL. */
static const char *nearest_word(const char *word, const char *const *known, int farthest) {
  const char *nearest = NULL;
  for (; *known; known++) {
    int d = distance(word, *known, farthest);
    if (d > farthest) continue;
    nearest = *known;
    farthest = d - 1;
  }
  return nearest;
}

const char *ch_suggest(const char *word, const char *const *known) {
  size_t length = strlen(word);
  if (!length || length > LONGEST) return NULL;
  /* Max edits by length; with more, it is another word, not a misspelling. */
  const char *nearest = nearest_word(word, known, length < 3 ? 1 : length < 6 ? 2 : 3);
  for (; !nearest && length >= 3 && *known; known++) /* an abbreviated name: "gshard" */
    if (strstr(*known, word)) nearest = *known;
  return nearest;
}

int ch_word_number(const char *const *words, const char *word) {
  for (int i = 0; words[i]; i++)
    if (!strcmp(words[i], word)) return i;
  return -1;
}

int ch_has_word(const char *list, const char *word) {
  size_t length = strlen(word);
  for (const char *at = list; (at = strstr(at, word)); at += length)
    if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return 1;
  return 0;
}

const char *ch_did_you_mean(char *text, size_t size, const char *word, const char *const *known) {
  const char *nearest = ch_suggest(word, known);
  if (nearest)
    snprintf(text, size, ", did you mean '%s'?", nearest);
  else
    text[0] = 0;
  return text;
}

const char *ch_word_list(char *text, size_t size, const char *const *known) {
  size_t used = 0;
  text[0] = 0;
  for (size_t i = 0; known[i] && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", known[i]);
  return text;
}
