#include "infer/stream.h"

#include "base/text.h"

/* Nonzero when `bytes`, cut off by the end of the text, may be the start of a character. */
static int may_go_on(const char *bytes, size_t size) {
  static const char *const tails[] = {"\x80\x80\x80", "\xA0\x80", "\x90\x80\x80"};
  if (size < 1 || size > 3) return 0;
  for (int i = 0; i < 3; i++) /* whatever starts a character goes on with one of these */
    for (size_t add = 1; add <= strlen(tails[i]); add++) {
      char whole[8];
      memcpy(whole, bytes, size);
      memcpy(whole + size, tails[i], add);
      if (ch_utf8_valid(whole, size + add) == size + add) return 1;
    }
  return 0;
}

/* Shows the bytes before `end`; an unfinished character at the very end of all bytes waits unless it is the last. */
static int show(ch_stream_text *s, size_t end, int last) {
  while (s->done < end) {
    const char *at = s->bytes.data + s->done;
    size_t left = end - s->done, valid = ch_utf8_valid(at, left);
    CH_TRY(ch_buffer_append(&s->text, at, valid));
    s->done += valid;
    if (s->done == end || (!last && may_go_on(at + valid, left - valid))) break;
    CH_TRY(ch_buffer_append(&s->text, "\xEF\xBF\xBD", 3));
    s->done++;
  }
  return CHOIR_OK;
}

/* Where the first stop text begins that ends behind `from`; `size` where there is none. */
static size_t find_stop(const ch_stream_text *s, size_t from, const char *const *stops) {
  size_t first = s->bytes.size;
  for (; stops && *stops; stops++) {
    size_t length = strlen(*stops), at = from + 1 > length ? from + 1 - length : 0;
    if (at < s->done) at = s->done;
    for (; length && at + length <= s->bytes.size && at < first; at++)
      if (!memcmp(s->bytes.data + at, *stops, length)) first = at;
  }
  return first;
}

/* Where the longest end of the bytes begins that is the beginning of a stop text. */
static size_t held_back(const ch_stream_text *s, const char *const *stops) {
  size_t first = s->bytes.size;
  for (; stops && *stops; stops++) {
    size_t length = strlen(*stops), most = length ? length - 1 : 0;
    if (most > s->bytes.size - s->done) most = s->bytes.size - s->done;
    for (size_t size = most; size > 0 && s->bytes.size - size < first; size--)
      if (!memcmp(s->bytes.data + s->bytes.size - size, *stops, size)) first = s->bytes.size - size;
  }
  return first;
}

int ch_stream_add(ch_stream_text *s, const char *bytes, size_t size, const char *const *stops) {
  size_t before = s->bytes.size;
  if (s->stopped) return CHOIR_OK;
  CH_TRY(ch_buffer_append(&s->bytes, bytes, size));
  size_t stop = find_stop(s, before, stops);
  s->stopped = stop < s->bytes.size;
  return s->stopped ? show(s, stop, 1) : show(s, held_back(s, stops), 0);
}

int ch_stream_end(ch_stream_text *s) { return s->stopped ? CHOIR_OK : show(s, s->bytes.size, 1); }

void ch_stream_free(ch_stream_text *s) {
  free(s->bytes.data);
  free(s->text.data);
  *s = (ch_stream_text){0};
}
