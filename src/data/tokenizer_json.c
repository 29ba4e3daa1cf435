#include "data/tokenizer_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "data/encoder.h"

int ch_tokenizer_json_refuse(const ch_tokenizer_json *f, const char *field, const json_t *value, const char *why) {
  char text[80];
  return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: %s is %s: %s", f->name, field,
                  value ? ch_json_show(value, text, sizeof text) : "missing", why);
}

int ch_json_is_text(const json_t *object, const char *key, const char *wanted) {
  const char *found = json_string_value(json_object_get(object, key));
  return found && !strcmp(found, wanted);
}

int ch_json_is_type(const json_t *object, const char *type) { return ch_json_is_text(object, "type", type); }

static int check_model(const ch_tokenizer_json *f, const char *const *off, const char *why) {
  static const char *const known[] = {"type",
                                      "dropout",
                                      "unk_token",
                                      "continuing_subword_prefix",
                                      "end_of_word_suffix",
                                      "fuse_unk",
                                      "byte_fallback",
                                      "ignore_merges",
                                      "vocab",
                                      "merges",
                                      NULL};
  const json_t *type = json_object_get(f->model, "type");
  if (type && !ch_json_is_type(f->model, "BPE"))
    return ch_tokenizer_json_refuse(f, "model.type", type, "choir reads \"BPE\"");
  CH_TRY(ch_json_check_keys(f->model, f->name, known));
  for (; *off; off++) {
    const json_t *value = json_object_get(f->model, *off);
    const char *text = json_string_value(value);
    char field[64];
    snprintf(field, sizeof field, "model.%s", *off);
    int zero = json_is_number(value) && json_number_value(value) == 0;
    if (value && !json_is_null(value) && !json_is_false(value) && !(text && !*text) && !zero)
      return ch_tokenizer_json_refuse(f, field, value, why);
  }
  return CHOIR_OK;
}

/* Adds a token id with its text; an added token may have the same text as one of the vocabulary. */
static int add_token(ch_tokenizer_json *f, const char *text, const json_t *id, const json_t *added) {
  json_int_t i = json_is_integer(id) ? json_integer_value(id) : -1;
  if (i < 0 || i >= f->count || (f->token[i].text && (f->token[i].added || strcmp(f->token[i].text, text) != 0)))
    return ch_error(CHOIR_ERROR_FORMAT,
                    "%s: token '%.40s' must have a number of its own, below the count of tokens, %d", f->name, text,
                    f->count);
  f->token[i] = (ch_json_token){text, strlen(text), added};
  return CHOIR_OK;
}

static int read_tokens(ch_tokenizer_json *f) {
  const json_t *list = json_object_get(f->root, "added_tokens"), *value;
  const char *text;
  size_t i;
  f->count = (int)json_object_size(f->vocab);
  json_array_foreach(list, i, value) {
    const json_t *id = json_object_get(value, "id");
    text = json_string_value(json_object_get(value, "content"));
    if (!text || !*text)
      return ch_tokenizer_json_refuse(f, "added_tokens", value, "each needs \"content\", a text that is not empty");
    if (json_object_get(f->vocab, text)) continue;
    if (json_integer_value(id) != f->count++) /* tokenizers numbers them itself */
      return ch_tokenizer_json_refuse(f, "added_tokens", value,
                                      "those outside of \"vocab\" must be numbered in their order, behind it");
  }
  if (f->count < 1 || f->count > CH_VOCAB_LIMIT)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %d tokens; choir takes 1 to %d", f->name, f->count, CH_VOCAB_LIMIT);
  CH_TRY(CH_ALLOC(&f->token, f->count, "the tokens of %s", f->name));
  json_object_foreach((json_t *)(uintptr_t)f->vocab, text, value) CH_TRY(add_token(f, text, value, NULL));
  json_array_foreach(list, i, value)
      CH_TRY(add_token(f, json_string_value(json_object_get(value, "content")), json_object_get(value, "id"), value));
  for (int id = 0; id < f->count; id++)
    if (!f->token[id].text) return ch_error(CHOIR_ERROR_FORMAT, "%s: no token has number %d", f->name, id);
  return CHOIR_OK;
}

int ch_tokenizer_json_read(const json_t *root, const char *name, const char *const *off, const char *why,
                           ch_tokenizer_json *f) {
  static const char *const known[] = {
      "version",        "truncation", "padding", "added_tokens",         "normalizer", "pre_tokenizer",
      "post_processor", "decoder",    "model",   CH_TOKENIZER_JSON_OURS, NULL};
  json_t *model, *vocab, *merges;
  *f = (ch_tokenizer_json){.name = name, .root = root};
  CH_TRY(ch_json_check_keys(root, name, known));
  CH_TRY(ch_json_get_object(root, name, "model", &model));
  f->model = model;
  CH_TRY(check_model(f, off, why));
  CH_TRY(ch_json_get_object(model, name, "vocab", &vocab));
  CH_TRY(ch_json_get_array(model, name, "merges", &merges));
  const char *first = json_string_value(json_array_get(merges, 0)); /* the line of merges.txt, kept in old files */
  if (first && !strncmp(first, "#version", 8)) json_array_remove(merges, 0);
  f->vocab = vocab, f->merges = merges;
  return read_tokens(f);
}

void ch_tokenizer_json_free(ch_tokenizer_json *f) { free(f->token); }

int ch_tokenizer_json_merge(const json_t *merge, const char **left, size_t *size, const char **right) {
  const char *text = json_string_value(merge);
  *left = text ? text : json_string_value(json_array_get(merge, 0));
  if (!*left || (!text && json_array_size(merge) != 2)) return 0;
  *size = text ? strcspn(text, " ") : strlen(*left);
  *right = text ? text + *size + (text[*size] == ' ') : json_string_value(json_array_get(merge, 1));
  return *size && *right && **right && !(text && strchr(*right, ' '));
}
