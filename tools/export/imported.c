#include "export/imported.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/spm.h"
#include "data/tokenizer_json.h"
#include "file/file.h"
#include "file/path_status.h"

#define KEPT "imported."
enum { LIMIT = 1 << 28 }; /* bytes of a file; the largest known tokenizer.json has a tenth of this */

static const char *const files[] = {"generation_config.json",
                                    "tokenizer.json",
                                    "tokenizer.model",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "chat_template.jinja",
                                    "vocab.json",
                                    "merges.txt",
                                    NULL};

static int copy_file(const char *from, const char *to) {
  char *bytes;
  size_t size;
  int there;
  CH_TRY(ch_path_exists(from, &there));
  if (!there) return CHOIR_OK;
  CH_TRY(ch_file_read(from, LIMIT, &bytes, &size));
  int code = ch_file_save(to, bytes, size);
  free(bytes);
  return code;
}

/* CHECKPOINT/imported.NAME, valid until the enclosing block ends. */
#define KEPT_IN(checkpoint, name) CH_IN(checkpoint, kept_name((char[64]){0}, name))
static const char *kept_name(char *kept, const char *name) {
  snprintf(kept, 64, KEPT "%s", name);
  return kept;
}

int ch_imported_keep(const char *folder, int tokenizer, const char *checkpoint) {
  CH_TRY(copy_file(CH_IN(folder, "config.json"), KEPT_IN(checkpoint, "config.json")));
  for (int i = 0; files[i] && (tokenizer || !i); i++)
    CH_TRY(copy_file(CH_IN(folder, files[i]), KEPT_IN(checkpoint, files[i])));
  return CHOIR_OK;
}

int ch_imported_keep_keys(const json_t *from, const char *checkpoint) {
  static const char *const keys[] = {"bos_token_id", "eos_token_id", "add_bos_token", "add_space_prefix"};
  json_t *config = json_object();
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    char key[64];
    snprintf(key, sizeof key, "tokenizer.ggml.%s", keys[i]);
    json_t *value = json_object_get(from, key);
    if (value) json_object_set(config, keys[i], value);
  }
  return ch_json_save(config, KEPT_IN(checkpoint, "config.json"));
}

/* ---- reading the files */

/* *root: the parsed file; NULL: it does not exist. */
static int load_kept(const char *checkpoint, const char *name, json_t **root) {
  const char *path = KEPT_IN(checkpoint, name);
  int there;
  *root = NULL;
  CH_TRY(ch_regular_exists(path, &there));
  return there ? ch_json_load(path, root) : CHOIR_OK;
}

/* A token id, or the first of several; -1: none. */
static int64_t token_of(const json_t *config, const char *key) {
  const json_t *value = json_object_get(config, key), *first = json_array_get(value, 0);
  if (first) value = first;
  return json_is_integer(value) ? json_integer_value(value) : -1;
}

/* Whether a post_processor, or a part of one, inserts a token at the beginning of a text. */
static int begins(const json_t *post) {
  const json_t *part;
  size_t i;
  if (json_object_get(json_array_get(json_object_get(post, "single"), 0), "SpecialToken")) return 1;
  json_array_foreach(json_object_get(post, "processors"), i, part) if (begins(part)) return 1;
  return 0;
}

/* Whether a normalizer or pre_tokenizer, or a part of one, inserts a space at the beginning of a text. */
static int puts_space(const json_t *step) {
  static const char *const lists[] = {"normalizers", "pretokenizers"};
  const json_t *scheme = json_object_get(step, "prepend_scheme"), *part;
  size_t i;
  if (ch_json_is_type(step, "Prepend")) return 1;
  if (ch_json_is_type(step, "Metaspace"))
    return json_is_string(scheme) ? strcmp(json_string_value(scheme), "never") != 0
                                  : !json_is_false(json_object_get(step, "add_prefix_space"));
  for (int l = 0; l < 2; l++)
    json_array_foreach(json_object_get(step, lists[l]), i, part) if (puts_space(part)) return 1;
  return 0;
}

/* Reads tokenizer.json if it exists, as transformers does; otherwise the settings of the SentencePiece model, to
 * which LlamaTokenizer adds the token that begins a text. */
static int read_tokenizer(const char *checkpoint, ch_imported *imported) {
  const char *path = KEPT_IN(checkpoint, "tokenizer.model");
  json_t *root;
  int there;
  CH_TRY(load_kept(checkpoint, "tokenizer.json", &root));
  if (root) {
    imported->tokenizer = 1;
    imported->add_bos = begins(json_object_get(root, "post_processor"));
    imported->add_space =
        puts_space(json_object_get(root, "normalizer")) || puts_space(json_object_get(root, "pre_tokenizer"));
    json_decref(root);
    return CHOIR_OK;
  }
  CH_TRY(ch_regular_exists(path, &there));
  if (!there) return CHOIR_OK;
  char *bytes;
  size_t size;
  CH_TRY(ch_file_read(path, LIMIT, &bytes, &size));
  imported->tokenizer = imported->add_bos = 1;
  imported->add_space = ch_spm_spec_adds_space(bytes, size);
  free(bytes);
  return CHOIR_OK;
}

/* A boolean member overrides the flag. */
static void take_flag(const json_t *object, const char *key, int *flag) {
  const json_t *value = json_object_get(object, key);
  if (json_is_boolean(value)) *flag = json_is_true(value);
}

int ch_imported_load(const char *checkpoint, ch_imported *imported) {
  json_t *settings;
  *imported = (ch_imported){.bos = -1, .eos = -1};
  CH_TRY(load_kept(checkpoint, "config.json", &imported->config));
  if (!imported->config) return CHOIR_OK;
  imported->bos = token_of(imported->config, "bos_token_id");
  imported->eos = token_of(imported->config, "eos_token_id");
  CH_TRY(read_tokenizer(checkpoint, imported));
  CH_TRY(load_kept(checkpoint, "tokenizer_config.json", &settings));
  take_flag(settings, "add_bos_token", &imported->add_bos);
  json_decref(settings);
  take_flag(imported->config, "add_bos_token", &imported->add_bos); /* from a GGUF file */
  take_flag(imported->config, "add_space_prefix", &imported->add_space);
  return CHOIR_OK;
}

int ch_imported_restore(const char *checkpoint, const char *folder) {
  for (int i = 0; files[i]; i++) {
    const char *kept = KEPT_IN(checkpoint, files[i]);
    int there;
    CH_TRY(ch_regular_exists(kept, &there));
    if (there) CH_TRY(copy_file(kept, CH_IN(folder, files[i])));
  }
  return CHOIR_OK;
}
