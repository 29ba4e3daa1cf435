/* Text formats of byte-level BPE: the spelling of its tokens, and the note that choir inserts into a tokenizer.json,
 * which is otherwise stored byte for byte. */
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/text.h"
#include "data/bpe_read.h"

/* GPT-2's byte alphabet: printable bytes map to themselves, the other 68 to U+0100, U+0101, ... in order. -1: not in
 * the alphabet. */
static int byte_of(int32_t c) {
  if ((c > 0x20 && c < 0x7F) || (c > 0xA0 && c < 0x100 && c != 0xAD)) return c;
  if (c >= 0x100 && c <= 0x120) return c - 0x100;
  if (c > 0x120 && c <= 0x142) return c - 0x121 + 0x7F;
  return c == 0x143 ? 0xAD : -1;
}

size_t ch_bpe_spell(const ch_json_token *token, char *out) {
  size_t count = 0, at = 0;
  while (at < token->size && !token->added) {
    utf8proc_int32_t c;
    at +=
        (size_t)utf8proc_iterate((const utf8proc_uint8_t *)token->text + at, (utf8proc_ssize_t)(token->size - at), &c);
    int byte = byte_of(c);
    if (byte < 0) return 0;
    out[count++] = (char)byte;
  }
  return count;
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

/* ---- the note ---- */

static const char begin[] = "{\"" CH_TOKENIZER_JSON_OURS "\": {", end[] = "}, ";

/* The text after the first brace, or after the note. */
static const char *rest_of(const char *bytes, size_t size, size_t *left) {
  const char *at = memchr(bytes, '{', size), *stop = bytes + size;
  if (at && (size_t)(stop - at) > sizeof begin && !memcmp(at, begin, sizeof begin - 1)) {
    const char *note = memmem(at, (size_t)(stop - at), end, sizeof end - 1);
    at = note ? note + sizeof end - 2 : at;
  }
  at = at ? at + 1 : stop;
  return *left = (size_t)(stop - at), at;
}

int ch_bpe_plain(const char *bytes, size_t size, ch_buffer *out) {
  size_t left;
  const char *rest = rest_of(bytes, size, &left);
  CH_TRY(ch_buffer_append(out, "{", 1));
  return ch_buffer_append(out, rest, left);
}

int ch_bpe_note(const char *bytes, size_t size, int64_t eos, int64_t tokens, ch_buffer *out) {
  char note[96];
  size_t left;
  const char *rest = rest_of(bytes, size, &left);
  if (eos < 0 && !tokens) return ch_bpe_plain(bytes, size, out);
  int n = snprintf(note, sizeof note, "%s", begin);
  if (eos >= 0) n += snprintf(note + n, sizeof note - (size_t)n, "\"eos\": %lld", (long long)eos);
  if (tokens)
    n += snprintf(note + n, sizeof note - (size_t)n, "%s\"tokens\": %lld", eos >= 0 ? ", " : "", (long long)tokens);
  n += snprintf(note + n, sizeof note - (size_t)n, "%s", end);
  CH_TRY(ch_buffer_append(out, note, (size_t)n));
  return ch_buffer_append(out, rest, left);
}
