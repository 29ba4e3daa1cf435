/* Splits a text into words: added tokens are cut out; the rest is normalized and split by regular expressions. */
#ifndef CH_DATA_WORDS_H
#define CH_DATA_WORDS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"

typedef struct ch_added_token {
  const char *text; /* owned by the tokenizer */
  size_t size;
  int32_t id;
} ch_added_token;

/* Tokens matched in the text before any other step. */
typedef struct ch_added_set {
  ch_added_token *token; /* [count] sorted by bytes, without duplicates */
  int count;
  char begins[256]; /* a token begins with this byte */
} ch_added_set;

enum { CH_PATTERNS = 3 };

/* How a family of tokenizers splits words: the text between the matches of one pattern, and the matches, are input
 * to the next pattern. */
typedef struct ch_cutting {
  const char *regex[CH_PATTERNS]; /* as in tokenizer.json; NULL: no more */
  const char *gguf[2]; /* llama.cpp's name: [0] if every word is merged, [1] if words that are tokens are not merged */
} ch_cutting;
extern const ch_cutting ch_cuttings[]; /* the first is the default of "ByteLevel"; ends with an entry without regex */

typedef struct ch_words {
  ch_added_set raw, normalized; /* tokens matched before, and after normalization */
  int nfc;
  const ch_cutting *cutting;
  void *code[CH_PATTERNS]; /* pcre2_code */
  void *limits;            /* pcre2_match_context */
} ch_words;

/* Sorts a set after its last token was added. */
void ch_added_sort(ch_added_set *set);

/* Compiles words->cutting. CHOIR_ERROR_MEMORY. */
int ch_words_compile(ch_words *words);
void ch_words_free(ch_words *words);

/* Calls `take` with every added token (its id) and word (id -1) of a well-formed text, in order, up to an error. */
typedef int ch_take_word(void *context, const char *word, size_t size, int32_t id);
int ch_words_of(const ch_words *words, const char *text, size_t size, ch_take_word *take, void *context);

/* Appends a well-formed text in normalization form C (Unicode Standard Annex 15). Time grows as size log size. */
int ch_nfc(const char *text, size_t size, ch_buffer *out);

#endif
