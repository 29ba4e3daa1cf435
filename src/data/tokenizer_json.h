/* Shared by all kinds of tokenizer.json of Hugging Face's tokenizers: tokens by id, and merges. */
#ifndef CH_DATA_TOKENIZER_JSON_H
#define CH_DATA_TOKENIZER_JSON_H

#include "file/json.h"

/* The key of the note that choir inserts at the beginning of a file that is otherwise unchanged: {"choir": {"eos":
 * 7, "tokens": 320}, ... */
#define CH_TOKENIZER_JSON_OURS "choir"

typedef struct ch_json_token {
  const char *text;
  size_t size;
  const json_t *added; /* its entry of "added_tokens"; NULL: none */
} ch_json_token;

typedef struct ch_tokenizer_json {
  const char *name; /* file name: starts every message */
  const json_t *root, *model, *vocab, *merges;
  ch_json_token *token; /* [count] */
  int count;
} ch_tokenizer_json;

/* Reads and checks everything except text processing ("normalizer", "pre_tokenizer", "decoder"), "post_processor"
 * and the contents of merges. Fields of the model in `off` (NULL-terminated) must have no effect; otherwise they are
 * refused with the reason `why`. CHOIR_ERROR_UNSUPPORTED, CHOIR_ERROR_FORMAT, CHOIR_ERROR_MEMORY. */
int ch_tokenizer_json_read(const json_t *root, const char *name, const char *const *off, const char *why,
                           ch_tokenizer_json *file);
void ch_tokenizer_json_free(ch_tokenizer_json *file);

/* Splits a merge into its two non-empty halves: "left right", or ["left", "right"]. 0: not a merge. */
int ch_tokenizer_json_merge(const json_t *merge, const char **left, size_t *size, const char **right);

/* CHOIR_ERROR_UNSUPPORTED: names the field, its value (NULL: missing), and the reason why it is not supported. */
int ch_tokenizer_json_refuse(const ch_tokenizer_json *file, const char *field, const json_t *value, const char *why);

/* Nonzero: the object has this "type"; or this text under a key. */
int ch_json_is_type(const json_t *object, const char *type);
int ch_json_is_text(const json_t *object, const char *key, const char *wanted);

#endif
