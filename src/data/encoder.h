/* Text to tokens, word by word; a text file as tokens. */
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
  char *bytes; /* of the model file; one that begins with '{' is a tokenizer.json */
  size_t size;
  uint64_t hash;
  int vocab, eos;
  int32_t byte_id[256]; /* SentencePiece: the token of each single byte, */
  char joins[128];      /* and whether a control character stands in pieces */
  ch_surface *surface;  /* [vocab]; for SentencePiece's control pieces empty */
  char **piece;         /* [vocab] for people */
  char *names;          /* what they and the surfaces point into, */
  char byte[256];       /* or into this */
};

/* A tokenizer of the bytes of a model, malloc'd, which it takes over; `name` starts messages. root: what they say, if
 * they are JSON and have been parsed, else NULL. */
int ch_tokenizer_of(char *bytes, size_t size, const json_t *root, const char *name, choir_tokenizer **tokenizer);

/* Allocates surface and piece for t->vocab tokens, and `names` bytes of names. CHOIR_ERROR_MEMORY. */
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
int ch_ids_reserve(ch_ids *ids, size_t more); /* room for more */

/* One thread's way to encode: remembers words it has seen, which is what makes it fast. */
typedef struct ch_encoder ch_encoder;

int ch_encoder_create(ch_encoder **encoder); /* CHOIR_ERROR_MEMORY */
void ch_encoder_free(ch_encoder *encoder);

static inline int ch_is_control(char c) { return (unsigned char)c < 0x20 || c == 0x7F; }

/* Bytes of the character at p if it is in no piece but is encoded byte for byte: control characters, but for those that
 * stand in pieces of t (NULL: no piece of choir's own making has one), and U+2581, which SentencePiece uses for the
 * space and so cannot keep. 0 otherwise. */
static inline size_t ch_stands_alone(const choir_tokenizer *t, const char *p, const char *end) {
  if (ch_is_control(*p)) return !(t && t->joins[(unsigned char)*p]);
  return (unsigned char)*p == 0xE2 && end - p >= 3 && (unsigned char)p[1] == 0x96 && (unsigned char)p[2] == 0x81 ? 3
                                                                                                                 : 0;
}

/* A space behind a visible character of ASCII: no word of any tokenizer reaches over it. */
static inline int ch_ends_word(const char *text, size_t at) {
  return text[at] == ' ' && text[at - 1] > 0x20 && text[at - 1] < 0x7F;
}

/* Appends the tokens of text, which must be well-formed UTF-8. encoder NULL: without memory of words (short texts).
 * A text is encoded word by word, so cutting it at places that ch_ends_word allows does not change its tokens. With
 * SentencePiece it may also be cut before a space that follows another character, and before a piece that stands alone.
 */
int ch_encode(const choir_tokenizer *tokenizer, ch_encoder *encoder, const char *text, size_t size, ch_ids *out);

/* choir_tokenizer_encode of a text that may be long: `stop` (or NULL) is asked some ten times a second and more, and
 * where it returns nonzero: CHOIR_ERROR_INTERRUPTED. */
int ch_encode_text(const choir_tokenizer *tokenizer, const char *text, size_t size, int (*stop)(void *context),
                   void *context, int32_t **ids, size_t *count);

/* The tokens of a text file, or of its beginning. */
typedef struct ch_text_tokens {
  int32_t *ids; /* free() it */
  size_t count;
  size_t bytes; /* of the text that the tokens encode */
  int cut;      /* there was more */
  size_t gzip;  /* bytes that gzip makes of the text; 0: it is cut, or there is no memory */
} ch_text_tokens;

/* At most `most` tokens (0: all). Of a long file no more is read than they can need. tokenizer NULL is refused. `stop`
 * (or NULL): nonzero ends it, CHOIR_ERROR_INTERRUPTED. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT,
 * CHOIR_ERROR_MEMORY. */
int ch_text_tokens_read(const choir_tokenizer *tokenizer, const char *path, size_t max, int (*stop)(void *context),
                        void *context, ch_text_tokens *text);

#endif
