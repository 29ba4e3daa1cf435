#include "data/bpe_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

typedef struct bpe_job {
  ch_tokenizer_json file;
  choir_tokenizer *t;
} bpe_job;

static int refuse_json(const bpe_job *j, const char *field, const json_t *value, const char *why) {
  return ch_tokenizer_json_refuse(&j->file, field, value, why);
}

/* ---- normalization and splitting of text, before merging ---- */

/* The steps of a "Sequence", or a single step. */
static size_t steps_of(const json_t *whole, const char *list) {
  return ch_json_is_type(whole, "Sequence") ? json_array_size(json_object_get(whole, list))
                                            : whole && !json_is_null(whole);
}

static const json_t *step_of(const json_t *whole, const char *list, size_t i) {
  return ch_json_is_type(whole, "Sequence") ? json_array_get(json_object_get(whole, list), i) : whole;
}

int ch_bpe_is(const json_t *root) {
  const json_t *p = json_object_get(root, "pre_tokenizer");
  size_t steps = steps_of(p, "pretokenizers");
  return steps && ch_json_is_type(step_of(p, "pretokenizers", steps - 1), "ByteLevel");
}

static int read_normalizer(bpe_job *j) {
  const json_t *whole = json_object_get(j->file.root, "normalizer");
  for (size_t i = 0; i < steps_of(whole, "normalizers"); i++) {
    const json_t *one = step_of(whole, "normalizers", i);
    if (!ch_json_is_type(one, "NFC")) return refuse_json(j, "normalizer", one, "choir knows NFC, or none (null)");
    j->t->bpe->words.nfc = 1;
  }
  return CHOIR_OK;
}

/* Nonzero: the step splits at matches of this pattern and keeps all of the text. Removing text that the pattern does
 * not match (invert) is equivalent if the pattern matches all text, as a rule's only pattern does (dolma2 is written in
 * this way). */
static int cuts_by(const json_t *step, const char *regex, int alone) {
  int isolated = ch_json_is_text(step, "behavior", "Isolated") && !json_is_true(json_object_get(step, "invert"));
  int kept = ch_json_is_text(step, "behavior", "Removed") && json_is_true(json_object_get(step, "invert"));
  return ch_json_is_type(step, "Split") && (isolated || (kept && alone)) &&
         ch_json_is_text(json_object_get(step, "pattern"), "Regex", regex);
}

static int read_pre_tokenizer(bpe_job *j) {
  const json_t *whole = json_object_get(j->file.root, "pre_tokenizer"), *step;
  size_t splits = steps_of(whole, "pretokenizers") - 1;
  const json_t *bytes = step_of(whole, "pretokenizers", splits), *regex = json_object_get(bytes, "use_regex");
  if (!json_is_false(json_object_get(bytes, "add_prefix_space")))
    return refuse_json(j, "pre_tokenizer", bytes,
                       "\"add_prefix_space\" must be false: choir puts no space in front of texts");
  if (!splits && !json_is_false(regex)) return j->t->bpe->words.cutting = ch_cuttings, CHOIR_OK;
  for (const ch_cutting *c = ch_cuttings; splits && json_is_false(regex) && c->regex[0]; c++) {
    size_t same = 0;
    while (same < splits && same < CH_PATTERNS && c->regex[same] && (step = step_of(whole, "pretokenizers", same)) &&
           cuts_by(step, c->regex[same], !c->regex[1]))
      same++;
    if (same == splits && (same == CH_PATTERNS || !c->regex[same])) return j->t->bpe->words.cutting = c, CHOIR_OK;
  }
  return refuse_json(
      j, "pre_tokenizer", whole,
      "its rule for words is none of those that choir knows, of GPT-2, Qwen 2 and 3, Llama 3, GLM-4, DeepSeek "
      "V3; make token ids by its own program, and give those (choir forward, choir score)");
}

/* ---- tokens ---- */

/* Bytes that never occur in UTF-8; some files have no tokens for them (GPT-NeoX, OLMo). */
static int never_in_utf8(int byte) { return byte == 0xC0 || byte == 0xC1 || byte > 0xF4; }

/* Writes the bytes and the name of a token, one after the other, at `at`; returns the address after them. Only
 * tokens spelled in the byte alphabet can occur in text. */
static char *add_token(bpe_job *j, int i, char *at) {
  choir_tokenizer *t = j->t;
  const ch_json_token *token = i < j->file.count ? &j->file.token[i] : NULL;
  size_t size = token ? ch_bpe_spell(token, at) : 0;
  t->surface[i] = (ch_surface){at, token && !size ? token->size : size};
  if (size == 1) t->bpe->byte_id[(unsigned char)*at] = i;
  if (size && t->bpe->whole) ch_bpe_add_whole(t->bpe, i);
  if (token && !size) memcpy(at, token->text, token->size);
  t->piece[i] = at += t->surface[i].size;
  return at + 1 + (token ? ch_bpe_name(t->surface[i], at) : (size_t)sprintf(at, "[PAD%d]", i));
}

static int add_tokens(bpe_job *j) {
  enum { PADDING = 24 };
  choir_tokenizer *t = j->t;
  size_t total = (size_t)(t->vocab - j->file.count) * PADDING;
  for (int i = 0; i < j->file.count; i++) total += 7 * j->file.token[i].size + 1;
  CH_TRY(ch_tokenizer_alloc(t, total));
  int whole = json_is_true(json_object_get(j->file.model, "ignore_merges"));
  t->bpe->surface = t->surface;
  CH_TRY(ch_bpe_begin(t->bpe, json_array_size(j->file.merges), whole ? (size_t)j->file.count : 0));
  char *at = t->names;
  for (int b = 0; b < 256; b++) t->bpe->byte_id[b] = -1;
  for (int i = 0; i < t->vocab; i++) at = add_token(j, i, at);
  for (int b = 0; b < 256; b++)
    if (t->bpe->byte_id[b] < 0 && !never_in_utf8(b))
      return ch_error(CHOIR_ERROR_FORMAT, "%s: model.vocab has no token for byte 0x%02X: texts with it would change",
                      j->file.name, b);
  return CHOIR_OK;
}

/* Nonzero: ch_encode could cut a long text within this token. */
static int could_be_cut(const char *text, size_t size) {
  for (size_t i = 1; i < size; i++)
    if (ch_ends_word(text, i)) return 1;
  return 0;
}

static int is_nfc(const char *text, size_t size) {
  ch_buffer plain = {0};
  int same = !ch_nfc(text, size, &plain) && plain.size == size && !memcmp(plain.data, text, size);
  free(plain.data);
  return same;
}

static int add_added(bpe_job *j) {
  static const char *const off[] = {"single_word", "lstrip", "rstrip"};
  ch_words *w = &j->t->bpe->words;
  CH_TRY(CH_ALLOC(&w->raw.token, j->file.count, "tokens of a tokenizer"));
  CH_TRY(CH_ALLOC(&w->normalized.token, j->file.count, "tokens of a tokenizer"));
  for (int i = 0; i < j->file.count; i++) {
    const ch_json_token *token = &j->file.token[i];
    const json_t *normalized = json_object_get(token->added, "normalized");
    if (!token->added) continue;
    for (int f = 0; f < 3; f++)
      if (!json_is_false(json_object_get(token->added, off[f])))
        return refuse_json(j, "added_tokens", token->added, "single_word, lstrip and rstrip must be false");
    if (could_be_cut(token->text, token->size))
      return refuse_json(j, "added_tokens", token->added,
                         "it has a space after another character, where choir cuts texts");
    if (!json_is_boolean(normalized) || (json_is_true(normalized) && w->nfc && !is_nfc(token->text, token->size)))
      return refuse_json(j, "added_tokens", token->added, "\"normalized\" must be true or false, and its text be NFC");
    ch_added_set *set = json_is_true(normalized) ? &w->normalized : &w->raw;
    set->token[set->count++] = (ch_added_token){j->t->surface[i].text, token->size, i};
  }
  ch_added_sort(&w->raw);
  ch_added_sort(&w->normalized);
  return CHOIR_OK;
}

/* ---- merges ---- */

static int64_t id_of(const bpe_job *j, const char *text) {
  const json_t *id = json_object_get(j->file.vocab, text);
  return id ? json_integer_value(id) : -1;
}

static int add_merge(bpe_job *j, const json_t *merge, int rank, ch_buffer *buffer) {
  const char *left, *right;
  size_t size, length;
  if (!ch_tokenizer_json_merge(merge, &left, &size, &right))
    return refuse_json(j, "model.merges", merge, "it is no pair of tokens");
  buffer->size = 0;
  CH_TRY(ch_buffer_append(buffer, left, size));
  CH_TRY(ch_buffer_append(buffer, "", 1));
  int64_t first = id_of(j, buffer->data), second = id_of(j, right);
  buffer->size = size, length = strlen(right);
  CH_TRY(ch_buffer_append(buffer, right, length + 1));
  int64_t made = id_of(j, buffer->data);
  if (first < 0 || second < 0 || made < 0 ||
      !ch_bpe_add_merge(j->t->bpe, (ch_merge){(int32_t)first, (int32_t)second, rank, (int32_t)made}))
    return refuse_json(j, "model.merges", merge,
                       "the two or what they make are not in the vocabulary, or it comes twice");
  return CHOIR_OK;
}

static int add_merges(bpe_job *j) {
  int code = CHOIR_OK;
  size_t merges = json_array_size(j->file.merges);
  ch_buffer buffer = {0};
  for (size_t i = 0; i < merges && !code; i++) code = add_merge(j, json_array_get(j->file.merges, i), (int)i, &buffer);
  free(buffer.data);
  return code;
}

/* ---- the whole file ---- */

/* Determines the token that ends a text and the number of tokens: from choir's note, or the first of the usual
 * names. */
static int read_note(bpe_job *j) {
  static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>",
                                      "<\xEF\xBD\x9C\x65nd\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>", "</s>"};
  json_t *note = json_object_get(j->file.root, CH_TOKENIZER_JSON_OURS);
  int64_t eos = -1, tokens = j->file.count;
  if (json_object_get(note, "tokens"))
    CH_TRY(ch_json_get_integer(note, j->file.name, "tokens", j->file.count, CH_VOCAB_LIMIT, &tokens));
  if (json_object_get(note, "eos")) CH_TRY(ch_json_get_integer(note, j->file.name, "eos", 0, j->file.count - 1, &eos));
  for (size_t u = 0; u < sizeof usual / sizeof *usual && eos < 0; u++)
    for (int i = 0; i < j->file.count && eos < 0; i++)
      if (j->file.token[i].added && !strcmp(j->file.token[i].text, usual[u])) eos = i;
  if (eos < 0)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "%s: no token is known to end a text: say which, by choir tokenizer import --eos ID", j->file.name);
  j->t->eos = (int)eos, j->t->vocab = (int)tokens;
  return CHOIR_OK;
}

static int read_bpe(bpe_job *j, const json_t *root, const char *name) {
  static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback",
                                    NULL};
  if (!ch_bpe_is(root))
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "%s: a tokenizer.json that is not of byte-level BPE: make a model of it by choir tokenizer import",
                    name);
  CH_TRY(ch_tokenizer_json_read(root, name, off, "choir's byte-level BPE has no such rule", &j->file));
  CH_TRY(read_normalizer(j));
  CH_TRY(read_pre_tokenizer(j));
  CH_TRY(read_note(j));
  CH_TRY(add_tokens(j));
  CH_TRY(add_added(j));
  CH_TRY(add_merges(j));
  return ch_words_compile(&j->t->bpe->words);
}

int ch_bpe_read(choir_tokenizer *t, const json_t *root, const char *name) {
  bpe_job j = {.t = t};
  CH_TRY(CH_ALLOC(&t->bpe, 1, "a tokenizer"));
  int code = read_bpe(&j, root, name);
  ch_tokenizer_json_free(&j.file);
  return code;
}
