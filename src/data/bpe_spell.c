#include "data/bpe_spell.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/text.h"

/* Bytes that can be seen stand for themselves, the other 68 are U+0100 and so on in their order. -1: neither. */
static int byte_of(int32_t c) {
  if ((c > 0x20 && c < 0x7F) || (c > 0xA0 && c < 0x100 && c != 0xAD)) return c;
  if (c >= 0x100 && c <= 0x120) return c - 0x100;
  if (c > 0x120 && c <= 0x142) return c - 0x121 + 0x7F;
  return c == 0x143 ? 0xAD : -1;
}

size_t ch_bpe_spell(const ch_json_token *token, char *out) {
  size_t count = 0;
  for (size_t at = 0; at < token->size && !token->added;) {
    utf8proc_int32_t c;
    at +=
        (size_t)utf8proc_iterate((const utf8proc_uint8_t *)token->text + at, (utf8proc_ssize_t)(token->size - at), &c);
    int byte = byte_of(c);
    if (byte < 0) break;
    out[count++] = (char)byte;
    if (at == token->size) return count;
  }
  memcpy(out, token->text, token->size);
  return token->size;
}

size_t ch_bpe_name(ch_surface s, char *out) {
  size_t n = 0;
  for (size_t i = 0; i < s.size;) {
    size_t valid = strnlen(s.text + i, ch_utf8_valid(s.text + i, s.size - i));
    memcpy(out + n, s.text + i, valid);
    n += valid, i += valid;
    if (i < s.size) n += (size_t)sprintf(out + n, "<0x%02X>", (unsigned char)s.text[i++]);
  }
  out[n] = 0;
  return n;
}
