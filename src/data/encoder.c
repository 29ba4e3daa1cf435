#include "data/encoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/text.h"
#include "file/file.h"

/* Word cache: two-way set-associative. A new word is stored in the second way and moves to the first when it occurs
 * again, so that the many words that occur once do not evict frequent ones. One cache line per entry. */
enum { SET_BITS = 16, WORD_BYTES = 30, WORD_TOKENS = 8 };
typedef struct word_slot {
  char word[WORD_BYTES];
  uint8_t size, count; /* size 0: empty */
  int32_t ids[WORD_TOKENS];
} word_slot;

struct ch_encoder {
  word_slot sets[1 << SET_BITS][2];
};

int ch_encoder_create(ch_encoder **encoder) { return CH_ALLOC(encoder, 1, "an encoder"); }

void ch_encoder_free(ch_encoder *encoder) { free(encoder); }

/* A word is cut after this many bytes: this bounds the time and memory of a search for the best pieces. */
enum { LONGEST_WORD = 4096 };

/* The end of the word at p: spaces, then everything up to a space or a character that is encoded separately. */
static const char *word_end(const choir_tokenizer *t, const char *p, const char *end) {
  const char *q = p, *stop = end - p > LONGEST_WORD ? p + LONGEST_WORD : end;
  while (q < stop && *q == ' ') q++;
  for (; q < stop; q++)
    if (*q == ' ' || ch_stands_alone(t, q, end)) return q;
  return q < end ? p + ch_utf8_cut(p, (size_t)(q - p)) : q;
}

int ch_ids_reserve(ch_ids *out, size_t more) {
  if (out->count + more <= out->capacity) return CHOIR_OK;
  size_t capacity = out->capacity * 2 > out->count + more ? out->capacity * 2 : out->count + more;
  CH_TRY(CH_RESIZE(&out->ids, capacity, "tokens"));
  out->capacity = capacity;
  return CHOIR_OK;
}

/* Whether the pieces spell the word: a word whose decoding would differ is detected when it is encoded. */
static int spells(const choir_tokenizer *t, const int32_t *ids, size_t count, const char *word, size_t size) {
  size_t at = 0;
  for (size_t i = 0; i < count; i++) {
    if (ids[i] < 0 || ids[i] >= t->vocab) return 0;
    ch_surface s = t->surface[ids[i]];
    if (s.size > size - at || memcmp(word + at, s.text, s.size)) return 0;
    at += s.size;
  }
  return at == size;
}

/* Encodes a word with SentencePiece or BPE; at most one token per byte. */
static int search(const choir_tokenizer *t, const char *word, size_t size, ch_ids *out) {
  size_t count;
  CH_TRY(ch_ids_reserve(out, size));
  if (t->bpe)
    CH_TRY(ch_bpe_encode(t->bpe, word, size, out->ids + out->count, &count));
  else
    CH_TRY(ch_spm_encode(t->spm, word, size, out->ids + out->count, size, &count));
  if (count > size || !spells(t, out->ids + out->count, count, word, size))
    return ch_error(CHOIR_ERROR_FORMAT,
                    "the model changes text: '%.*s' does not come back; choir needs one that does not",
                    (int)(size < 40 ? size : 40), word);
  out->count += count;
  return CHOIR_OK;
}

static int is_word(const word_slot *s, const char *word, size_t size) {
  return s->size == size && !memcmp(s->word, word, size);
}

static int remembered(const choir_tokenizer *t, ch_encoder *e, const char *word, size_t size, ch_ids *out) {
  word_slot *set = e->sets[XXH64(word, size, 0) >> (64 - SET_BITS)], *s = &set[1];
  if (is_word(s, word, size)) {
    word_slot older = set[0];
    set[0] = *s, *s = older;
  }
  if (is_word(&set[0], word, size)) {
    memcpy(out->ids + out->count, set[0].ids, sizeof set[0].ids);
    out->count += set[0].count;
    return CHOIR_OK;
  }
  size_t before = out->count;
  CH_TRY(search(t, word, size, out));
  size_t count = out->count - before;
  if (count > WORD_TOKENS) return CHOIR_OK;
  memcpy(s->word, word, size);
  s->size = (uint8_t)size, s->count = (uint8_t)count;
  memcpy(s->ids, out->ids + before, count * sizeof *s->ids);
  return CHOIR_OK;
}

static int encode_word(const choir_tokenizer *t, ch_encoder *e, const char *word, size_t size, ch_ids *out) {
  CH_TRY(ch_ids_reserve(out, WORD_TOKENS));
  return e && size <= WORD_BYTES ? remembered(t, e, word, size, out) : search(t, word, size, out);
}

typedef struct taker {
  const choir_tokenizer *t;
  ch_encoder *e;
  ch_ids *out;
} taker;

static int take_word(void *context, const char *word, size_t size, int32_t id) {
  const taker *k = context;
  if (id < 0) return encode_word(k->t, k->e, word, size, k->out);
  CH_TRY(ch_ids_reserve(k->out, 1));
  k->out->ids[k->out->count++] = id;
  return CHOIR_OK;
}

int ch_encode(const choir_tokenizer *t, ch_encoder *e, const char *text, size_t size, ch_ids *out) {
  if (t->bpe) return ch_words_of(&t->bpe->words, text, size, take_word, &(taker){t, e, out});
  for (const char *p = text, *end = text + size; p < end;) {
    size_t bytes = ch_stands_alone(t, p, end);
    if (bytes) {
      CH_TRY(ch_ids_reserve(out, bytes));
      for (size_t i = 0; i < bytes; i++) out->ids[out->count++] = t->byte_id[(unsigned char)p[i]];
    } else {
      bytes = (size_t)(word_end(t, p, end) - p);
      CH_TRY(encode_word(t, e, p, bytes, out));
    }
    p += bytes;
  }
  return CHOIR_OK;
}

enum { LONG_TEXT = 1 << 16 }; /* from this length on a word cache pays, and stop requests are checked */

/* The end of the part that begins at `at`: a position where cutting does not change the tokens (ch_encode). */
static size_t piece_end(const choir_tokenizer *t, const char *text, size_t at, size_t size) {
  for (at += LONG_TEXT; at < size; at++)
    if (ch_ends_word(text, at) ||
        (t->spm && (ch_stands_alone(t, text + at, text + size) || (text[at] == ' ' && text[at - 1] != ' '))))
      return at;
  return size;
}

int ch_encode_text(const choir_tokenizer *t, const char *text, size_t size, int (*stop)(void *context), void *context,
                   int32_t **ids, size_t *count) {
  *ids = NULL, *count = 0;
  size_t valid = ch_utf8_valid(text, size);
  if (valid < size)
    return ch_error(CHOIR_ERROR_FORMAT, "byte %zu of the text: not UTF-8 (0x%02X)", valid, (unsigned char)text[valid]);
  ch_encoder *encoder = NULL;
  ch_ids out = {.capacity = 1};
  int code = CH_ALLOC(&out.ids, 1, "tokens"); /* never NULL, even for an empty text */
  if (!code && size >= LONG_TEXT) code = ch_encoder_create(&encoder);
  for (size_t at = 0, end; at < size && !code; at = end) {
    end = piece_end(t, text, at, size);
    code = ch_encode(t, encoder, text + at, end - at, &out);
    if (!code && stop && end < size && stop(context))
      code = ch_error(CHOIR_ERROR_INTERRUPTED, "stopped at byte %zu of %zu of the text", end, size);
  }
  ch_encoder_free(encoder);
  if (code) {
    free(out.ids);
    return code;
  }
  *ids = out.ids, *count = out.count;
  return CHOIR_OK;
}

/* ---- text files ---- */

/* Texts are read, not mapped: a mapped one that another program cuts short is a SIGBUS. */
static const size_t FILE_LIMIT = (size_t)1 << 36;

/* Bytes that certainly contain `max` tokens: the length of the longest piece for each, and a word more because the
 * last word may be cut. */
static size_t enough(const choir_tokenizer *t, size_t max) {
  enum { WORD = 4096 };
  size_t longest = 1;
  for (int i = 0; i < t->vocab; i++)
    if (t->surface[i].size > longest) longest = t->surface[i].size;
  return max < (FILE_LIMIT - WORD) / longest ? max * longest + WORD : FILE_LIMIT;
}

/* Reads the first `limit` bytes, without an incomplete character at the end. */
static int read_start(const char *path, size_t limit, char **text, size_t *bytes, int *cut) {
  FILE *file = fopen(path, "rb");
  if (!file) return ch_error_errno("%s: cannot open", path);
  char *data;
  int code = CH_ALLOC(&data, limit + 1, "%s", path);
  size_t size = code ? 0 : fread(data, 1, limit + 1, file);
  if (ferror(file)) code = ch_error_errno("%s: cannot read", path);
  fclose(file);
  if (code) {
    free(data);
    return code;
  }
  *cut = size > limit;
  *bytes = *cut ? ch_utf8_cut(data, limit) : size;
  *text = data;
  return CHOIR_OK;
}

/* The size of a text compressed with gzip; 0: no memory. */
static size_t gzip_bytes(const char *text, size_t bytes) {
  enum { GZIP_FRAME = 18, ZLIB_FRAME = 6 };
  uLongf size = compressBound(bytes);
  Bytef *packed = malloc(size);
  if (packed && compress2(packed, &size, (const Bytef *)text, bytes, Z_DEFAULT_COMPRESSION)) size = 0;
  int made = packed && size;
  free(packed);
  return made ? size - ZLIB_FRAME + GZIP_FRAME : 0;
}

int ch_text_tokens_read(const choir_tokenizer *t, const char *path, size_t max, int (*stop)(void *context),
                        void *context, ch_text_tokens *out) {
  char *text;
  size_t bytes;
  *out = (ch_text_tokens){0};
  if (!t) return ch_error(CHOIR_ERROR_ARGUMENT, "%s: a text needs the checkpoint's tokenizer.model", path);
  if (max)
    CH_TRY(read_start(path, enough(t, max), &text, &bytes, &out->cut));
  else
    CH_TRY(ch_file_read(path, FILE_LIMIT, &text, &bytes));
  size_t mark = ch_utf8_mark(text, bytes);
  int code = ch_encode_text(t, text + mark, bytes - mark, stop, context, &out->ids, &out->count);
  if (!code && !max) out->gzip = gzip_bytes(text + mark, bytes - mark);
  free(text);
  if (code) return ch_error_in(code, "%s", path);
  if (max && out->count > max) {
    out->count = max;
    out->cut = 1;
  }
  for (size_t i = 0; i < out->count; i++) out->bytes += t->surface[out->ids[i]].size;
  return CHOIR_OK;
}
