/* The note that choir puts into a tokenizer.json, which is otherwise kept byte for byte. */
#include <stdio.h>
#include <string.h>

#include "data/bpe_read.h"
#include "data/tokenizer_json.h"

static const char begin[] = "{\"" CH_TOKENIZER_JSON_OURS "\": {", end[] = "}, ";

/* What follows the first brace, or the note. */
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
