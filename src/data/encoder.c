#include "data/encoder.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "data/utf8.h"

/* Memory of words: each word has one place, where a later word may take over. One cache line an entry. */
enum { SLOT_BITS = 16, WORD_BYTES = 30, WORD_TOKENS = 8 };
typedef struct slot {
  char word[WORD_BYTES];
  uint8_t size, count; /* size 0: empty */
  int32_t ids[WORD_TOKENS];
} slot;

struct ch_encoder {
  slot slots[1 << SLOT_BITS];
};

ch_encoder *ch_encoder_new(void) { return calloc(1, sizeof(ch_encoder)); }

void ch_encoder_free(ch_encoder *encoder) { free(encoder); }

/* A word is cut after this many bytes: bounds the work and memory of one search for the best pieces. */
enum { LONGEST_WORD = 4096 };

/* The end of the word at p: spaces, then what follows up to a space or a character that stands alone. */
static const char *word_end(const char *p, const char *end) {
  const char *q = p, *stop = end - p > LONGEST_WORD ? p + LONGEST_WORD : end;
  while (q < stop && *q == ' ') q++;
  for (; q < stop; q++)
    if (*q == ' ' || ch_stands_alone(q, end)) return q;
  return q < end ? p + ch_utf8_cut(p, (size_t)(q - p)) : q;
}

static int reserve(ch_ids *out, size_t more) {
  if (out->count + more <= out->capacity) return CHOIR_OK;
  size_t capacity = out->capacity * 2 > out->count + more ? out->capacity * 2 : out->count + more;
  int32_t *ids = reallocarray(out->ids, capacity, sizeof *ids);
  if (!ids) return ch_error(CHOIR_ERROR_MEMORY, "not enough memory for %zu tokens", capacity);
  out->ids = ids, out->capacity = capacity;
  return CHOIR_OK;
}

/* Whether the pieces make up the word: a text that would come back as another is found where it is encoded. */
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

/* A word through SentencePiece; at most a token a byte. */
static int search(const choir_tokenizer *t, const char *word, size_t size, ch_ids *out) {
  size_t count;
  CH_TRY(reserve(out, size));
  CH_TRY(ch_spm_encode(t->spm, word, size, out->ids + out->count, size, &count));
  if (count > size || !spells(t, out->ids + out->count, count, word, size))
    return ch_error(CHOIR_ERROR_FORMAT,
                    "the model changes text: '%.*s' does not come back; choir needs one that does not",
                    (int)(size < 40 ? size : 40), word);
  out->count += count;
  return CHOIR_OK;
}

static int remembered(const choir_tokenizer *t, ch_encoder *e, const char *word, size_t size, ch_ids *out) {
  slot *s = &e->slots[XXH64(word, size, 0) >> (64 - SLOT_BITS)];
  if (s->size == size && !memcmp(s->word, word, size)) {
    memcpy(out->ids + out->count, s->ids, sizeof s->ids);
    out->count += s->count;
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

static void push_bytes(const choir_tokenizer *t, const char *p, size_t size, ch_ids *out) {
  for (size_t i = 0; i < size; i++) out->ids[out->count++] = t->byte_id[(unsigned char)p[i]];
}

int ch_encode(const choir_tokenizer *t, ch_encoder *e, const char *text, size_t size, ch_ids *out) {
  for (const char *p = text, *end = text + size; p < end;) {
    CH_TRY(reserve(out, WORD_TOKENS));
    size_t bytes = ch_stands_alone(p, end);
    if (bytes) {
      push_bytes(t, p, bytes, out);
    } else {
      bytes = (size_t)(word_end(p, end) - p);
      CH_TRY(e && bytes <= WORD_BYTES ? remembered(t, e, p, bytes, out) : search(t, p, bytes, out));
    }
    p += bytes;
  }
  return CHOIR_OK;
}
