#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "data/words.h"

/* A character with what it is sorted by: 8 bits of combining class, 35 of place, 21 of code point. */
static uint64_t sort_key(utf8proc_int32_t c, size_t place) {
  return (uint64_t)utf8proc_get_property(c)->combining_class << 56 | (uint64_t)place << 21 | (uint32_t)c;
}

static int by_key(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Marks in a row, those of a combining class above 0, in the order of their classes. utf8proc sorts them itself, in
 * time that grows with the square of their number. */
static void sort_marks(utf8proc_int32_t *c, size_t count, uint64_t *keys) {
  for (size_t i = 0, n; i < count; i += n + 1) {
    for (n = 0; i + n < count; n++)
      if (!((keys[n] = sort_key(c[i + n], n)) >> 56)) break;
    if (n < 2) continue;
    qsort(keys, n, sizeof *keys, by_key);
    for (size_t k = 0; k < n; k++) c[i + k] = (utf8proc_int32_t)(keys[k] & 0x1FFFFF);
  }
}

/* Characters below U+0300 neither combine with others nor change. */
static int is_plain(const char *text, size_t size) {
  for (size_t i = 0; i < size; i++)
    if ((unsigned char)text[i] >= 0xCC) return 0;
  return 1;
}

static int compose(const char *text, size_t size, utf8proc_int32_t *c, uint64_t *keys, size_t room, ch_buffer *out) {
  utf8proc_ssize_t count = 0;
  for (size_t at = 0; at < size;) {
    utf8proc_int32_t one;
    at += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(size - at), &one);
    count += utf8proc_decompose_char(one, c + count, (utf8proc_ssize_t)room - count, UTF8PROC_DECOMPOSE, NULL);
  }
  sort_marks(c, (size_t)count, keys);
  count = utf8proc_normalize_utf32(c, count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  CH_TRY(ch_buffer_reserve(out, 4 * (size_t)count + 1));
  for (utf8proc_ssize_t i = 0; i < count; i++)
    out->size += (size_t)utf8proc_encode_char(c[i], (utf8proc_uint8_t *)out->data + out->size);
  return CHOIR_OK;
}

int ch_nfc(const char *text, size_t size, ch_buffer *out) {
  if (is_plain(text, size)) return ch_buffer_append(out, text, size);
  size_t room = 2 * size; /* two bytes become three characters at most: U+01D5 */
  utf8proc_int32_t *c = reallocarray(NULL, room, sizeof *c);
  uint64_t *keys = reallocarray(NULL, room, sizeof *keys);
  int code = c && keys ? compose(text, size, c, keys, room, out)
                       : ch_error(CHOIR_ERROR_MEMORY, "not enough memory to normalize %zu bytes", size);
  free(c);
  free(keys);
  return code;
}
