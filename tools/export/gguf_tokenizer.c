/* Converts the vocabulary of a GGUF file to a tokenizer: a SentencePiece model, or a tokenizer.json of byte-level
 * BPE. */
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/error.h"
#include "data/bpe_read.h"
#include "export/gguf_read.h"
#include "export/spm_write.h"

static uint32_t u32_at(const ch_gguf_array *array, uint64_t i) {
  uint32_t value;
  memcpy(&value, array->at + i * sizeof value, sizeof value);
  return le32toh(value);
}

/* ---- byte-level BPE, "gpt2" ---- */

/* The splitting rule that llama.cpp applies under a name; *whole: words that are tokens are not merged. NULL:
 * unknown. */
static const ch_cutting *find_cutting(const char *pre, int *whole) {
  if (!strcmp(pre, "olmo")) pre = "gpt-2";
  if (!strcmp(pre, "glm4")) pre = "llama-bpe";
  for (const ch_cutting *c = ch_cuttings; c->regex[0]; c++)
    for (*whole = 0; *whole < 2; ++*whole)
      if (c->gguf[*whole] && !strcmp(c->gguf[*whole], pre)) return c;
  return NULL;
}

static json_t *pre_tokenizer(const ch_cutting *cutting) {
  if (cutting == ch_cuttings) return json_pack("{s:s, s:b}", "type", "ByteLevel", "add_prefix_space", 0);
  json_t *steps = json_array();
  for (int i = 0; i < CH_PATTERNS && cutting->regex[i]; i++)
    ch_json_add(steps, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", cutting->regex[i],
                                 "behavior", "Isolated", "invert", 0));
  ch_json_add(steps, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0));
  return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
}

/* Without normalization, because llama.cpp does none. Unused tokens at the end are recorded in the note only. */
static json_t *tokenizer_json(const ch_gguf_array *texts, const ch_gguf_array *kinds, const ch_gguf_array *pairs,
                              const ch_cutting *cutting, int whole) {
  json_t *vocab = json_object(), *added = json_array(), *merges = json_array();
  const char *at = texts->at;
  uint64_t count = texts->count;
  while (count && u32_at(kinds, count - 1) == CH_SPM_UNUSED) count--;
  for (uint64_t i = 0; i < count; i++) {
    size_t size;
    const char *text = ch_gguf_next_text(&at, &size);
    uint32_t kind = u32_at(kinds, i);
    char *key = strndup(text, size); /* byte-level tokens have no NUL */
    if (!key || strlen(key) != size || json_object_set_new(vocab, key, json_integer((json_int_t)i)))
      ch_json_add(added, NULL);
    free(key);
    if (kind == CH_SPM_CONTROL || kind == CH_SPM_USER)
      ch_json_add(added, json_pack("{s:I, s:s%, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i, "content", text, size,
                                   "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special",
                                   kind == CH_SPM_CONTROL));
  }
  at = pairs->at;
  for (uint64_t i = 0; i < pairs->count; i++) {
    size_t size;
    const char *text = ch_gguf_next_text(&at, &size);
    ch_json_add(merges, json_stringn(text, size));
  }
  return json_pack("{s:s, s:o, s:n, s:o, s:n, s:{s:s}, s:{s:s, s:b, s:o, s:o}}", "version", "1.0", "added_tokens",
                   added, "normalizer", "pre_tokenizer", pre_tokenizer(cutting), "post_processor", "decoder", "type",
                   "ByteLevel", "model", "type", "BPE", "ignore_merges", whole, "vocab", vocab, "merges", merges);
}

static int read_bpe(const ch_gguf_in *in, const char *name, ch_buffer *model) {
  const char *pre = json_string_value(json_object_get(in->keys, "tokenizer.ggml.pre"));
  const json_t *eos = json_object_get(in->keys, "tokenizer.ggml.eos_token_id");
  const ch_gguf_array *texts = ch_gguf_find_array(in, "tokenizer.ggml.tokens", CH_GGUF_TEXT),
                      *kinds = ch_gguf_find_array(in, "tokenizer.ggml.token_type", CH_GGUF_I32),
                      *pairs = ch_gguf_find_array(in, "tokenizer.ggml.merges", CH_GGUF_TEXT);
  int whole;
  const ch_cutting *cutting = find_cutting(pre ? pre : "none", &whole);
  if (!cutting)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "%s: \"tokenizer.ggml.pre\" is \"%.40s\": choir reads gpt-2, olmo, qwen2, smaug-bpe, llama-bpe, "
                    "glm4 and deepseek-v3",
                    name, pre ? pre : "none");
  if (!texts || !kinds || !pairs || kinds->count != texts->count)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: the tokenizer's tokens, types and merges are not all there", name);
  json_t *root = tokenizer_json(texts, kinds, pairs, cutting, whole);
  char *text = ch_json_dump(root, JSON_COMPACT);
  json_decref(root);
  if (!text) return ch_error(CHOIR_ERROR_FORMAT, "%s: its tokens cannot be put into a tokenizer.json", name);
  int code = ch_bpe_note(text, strlen(text), eos ? json_integer_value(eos) : -1, (int64_t)texts->count, model);
  free(text);
  return code;
}

/* ---- SentencePiece, "llama" ---- */

int ch_gguf_tokenizer(const ch_gguf_in *in, const char *name, ch_buffer *model) {
  static const char *const keys[] = {"unknown", "bos", "eos", "padding"}; /* as CH_SPM_UNK and so on */
  const char *type = json_string_value(json_object_get(in->keys, "tokenizer.ggml.model"));
  const ch_gguf_array *texts = ch_gguf_find_array(in, "tokenizer.ggml.tokens", CH_GGUF_TEXT),
                      *scores = ch_gguf_find_array(in, "tokenizer.ggml.scores", CH_GGUF_F32),
                      *kinds = ch_gguf_find_array(in, "tokenizer.ggml.token_type", CH_GGUF_I32);
  if (type && !strcmp(type, "gpt2")) return read_bpe(in, name, model);
  if (!type || strcmp(type, "llama"))
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "%s: \"tokenizer.ggml.model\" is \"%.40s\": choir reads SentencePiece's, \"llama\", and byte-level "
                    "BPE, \"gpt2\"",
                    name, type ? type : "none");
  if (!texts || !scores || !kinds || scores->count != texts->count || kinds->count != texts->count)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: the tokenizer's tokens, scores and types are not one of each", name);
  ch_spm_special special[CH_SPM_SPECIALS];
  for (int i = 0; i < CH_SPM_SPECIALS; i++) {
    char key[64];
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", keys[i]);
    const json_t *id = json_object_get(in->keys, key);
    special[i] = (ch_spm_special){.id = id ? json_integer_value(id) : i == CH_SPM_UNK ? 0 : -1, .text = ""};
  }
  const char *at = texts->at;
  for (uint64_t i = 0; i < texts->count; i++) {
    size_t size;
    uint32_t bits = u32_at(scores, i), kind = u32_at(kinds, i);
    float score;
    const char *text = ch_gguf_next_text(&at, &size);
    memcpy(&score, &bits, sizeof score);
    ch_spm_put_piece(model, text, size, score,
                     kind >= CH_SPM_NORMAL && kind <= CH_SPM_BYTE ? (int)kind : CH_SPM_NORMAL);
    for (int s = 0; s < CH_SPM_SPECIALS; s++)
      if (special[s].id == (int64_t)i) special[s].text = text, special[s].size = size;
  }
  ch_spm_put_settings(model, (int64_t)texts->count, special, 0);
  return model->data ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for its tokenizer", name);
}
