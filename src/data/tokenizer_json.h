/* What all kinds of tokenizer.json of Hugging Face's tokenizers have in common: tokens by number, and pairs to merge.
 */
#ifndef CH_DATA_TOKENIZER_JSON_H
#define CH_DATA_TOKENIZER_JSON_H

#include "file/json.h"

/* What choir puts first into a file that is otherwise left as it is: {"choir": {"eos": 7, "tokens": 320}, ... */
#define CH_TOKENIZER_JSON_OURS "choir"

typedef struct ch_json_token {
  const char *text;
  size_t size;
  const json_t *added; /* its entry of "added_tokens"; NULL: none */
} ch_json_token;

typedef struct ch_tokenizer_json {
  const char *name; /* of the file: starts every message */
  const json_t *root, *model, *vocab, *merges;
  ch_json_token *token; /* [count] */
  int count;
} ch_tokenizer_json;

/* Reads and checks all but what is done to text ("normalizer", "pre_tokenizer", "decoder"), "post_processor" and the
 * merges themselves. Fields of the model in `off` (NULL-terminated) must have no effect: they are refused because
 * `why`. CHOIR_ERROR_UNSUPPORTED, CHOIR_ERROR_FORMAT, CHOIR_ERROR_MEMORY. */
int ch_tokenizer_json_read(const json_t *root, const char *name, const char *const *off, const char *why,
                           ch_tokenizer_json *file);
void ch_tokenizer_json_free(ch_tokenizer_json *file);

/* The two halves of a merge, neither empty: "left right", or ["left", "right"]. 0: it is no such thing. */
int ch_tokenizer_json_merge(const json_t *merge, const char **left, size_t *size, const char **right);

/* CHOIR_ERROR_UNSUPPORTED: the field has this value (NULL: is missing), and why that will not do. */
int ch_tokenizer_json_refuse(const ch_tokenizer_json *file, const char *field, const json_t *value, const char *why);

/* Nonzero: the object has that "type"; that text under a key. */
int ch_json_is_type(const json_t *object, const char *type);
int ch_json_is_text(const json_t *object, const char *key, const char *wanted);

#endif
