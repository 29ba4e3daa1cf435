/* Encodes text as tokens, word by word; reads a text file as tokens. */
#ifndef CH_DATA_ENCODER_H
#define CH_DATA_ENCODER_H

#include <jansson.h>

#include "base/alloc.h"
#include "choir/tokenizer.h"
#include "data/bpe.h"
#include "data/spm.h"

enum { CH_VOCAB_LIMIT = 256000 };

struct choir_tokenizer {
  ch_spm *spm; /* SentencePiece's model, or NULL: the tokenizer has bpe instead */
  ch_bpe *bpe; /* byte-level BPE, or NULL */
  char *bytes; /* content of the model file; a tokenizer.json begins with '{' */
  size_t size;
  uint64_t hash;
  int vocab, eos;
  int32_t byte_id[256]; /* SentencePiece: the token of each single byte */
  char joins[128];      /* SentencePiece: whether a piece contains this control character */
  ch_surface *surface;  /* [vocab]; for SentencePiece's control pieces empty */
  char **piece;         /* [vocab] readable names */
  char *names;          /* memory of names and surfaces */
  char byte[256];       /* memory of single-byte surfaces */
};

/* Makes a tokenizer from the malloc'd bytes of a model, which it takes over; messages start with `name`. root: the
 * parsed bytes, if they are JSON and have been parsed, else NULL. */
int ch_tokenizer_of(char *bytes, size_t size, const json_t *root, const char *name, choir_tokenizer **tokenizer);

/* Allocates surface and piece for t->vocab tokens, and `names` bytes for names. CHOIR_ERROR_MEMORY. */
static inline int ch_tokenizer_alloc(choir_tokenizer *t, size_t names) {
  CH_TRY(CH_ALLOC(&t->surface, t->vocab, "surfaces of tokens"));
  CH_TRY(CH_ALLOC(&t->piece, t->vocab, "tokens"));
  return CH_ALLOC(&t->names, names, "names of tokens");
}

/* A growing list of tokens. */
typedef struct ch_ids {
  int32_t *ids; /* free() it */
  size_t count, capacity;
} ch_ids;
int ch_ids_reserve(ch_ids *ids, size_t more); /* allocates space for `more` tokens */

/* An encoder of one thread: a cache of the words it has encoded, which makes encoding fast. */
typedef struct ch_encoder ch_encoder;

int ch_encoder_create(ch_encoder **encoder); /* CHOIR_ERROR_MEMORY */
void ch_encoder_free(ch_encoder *encoder);

static inline int ch_is_control(char c) { return (unsigned char)c < 0x20 || c == 0x7F; }

/* The length of the character at p if it is in no piece and is encoded byte by byte: control characters, except
 * those in pieces of t (NULL: a tokenizer trained by choir, which has none in pieces), and U+2581, which SentencePiece
 * uses for the space. 0 otherwise. */
static inline size_t ch_stands_alone(const choir_tokenizer *t, const char *p, const char *end) {
  if (ch_is_control(*p)) return !(t && t->joins[(unsigned char)*p]);
  return (unsigned char)*p == 0xE2 && end - p >= 3 && (unsigned char)p[1] == 0x96 && (unsigned char)p[2] == 0x81 ? 3
                                                                                                                 : 0;
}

/* A space after a visible ASCII character: no word of any tokenizer spans it. */
static inline int ch_ends_word(const char *text, size_t at) {
  return text[at] == ' ' && text[at - 1] > 0x20 && text[at - 1] < 0x7F;
}

/* Appends the tokens of text, which must be well-formed UTF-8. encoder NULL: without a word cache (short texts). A
 * text is encoded word by word, so cutting it at positions that ch_ends_word allows does not change its tokens. With
 * SentencePiece it may also be cut before a space that follows another character, and before a character that is
 * encoded byte by byte. */
int ch_encode(const choir_tokenizer *tokenizer, ch_encoder *encoder, const char *text, size_t size, ch_ids *out);

/* choir_tokenizer_encode of a text that may be long: `stop` (or NULL) is called at least ten times a second; if it
 * returns nonzero: CHOIR_ERROR_INTERRUPTED. */
int ch_encode_text(const choir_tokenizer *tokenizer, const char *text, size_t size, int (*stop)(void *context),
                   void *context, int32_t **ids, size_t *count);

/* The tokens of a text file, or of its beginning. */
typedef struct ch_text_tokens {
  int32_t *ids; /* free() it */
  size_t count;
  size_t bytes; /* length of the text that the tokens encode */
  int cut;      /* the file has more tokens */
  size_t gzip;  /* size of the text compressed with gzip; 0: the text is cut, or there is no memory */
} ch_text_tokens;

/* Reads at most `max` tokens (0: all), and no more of a long file than they can need. tokenizer NULL is refused.
 * `stop` (or NULL): nonzero stops reading, CHOIR_ERROR_INTERRUPTED. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_IO,
 * CHOIR_ERROR_FORMAT, CHOIR_ERROR_MEMORY. */
int ch_text_tokens_read(const choir_tokenizer *tokenizer, const char *path, size_t max, int (*stop)(void *context),
                        void *context, ch_text_tokens *text);

#endif
