/* Reads tokenizer.json of Hugging Face's tokenizers: byte-level BPE as it is; BPE with byte fallback, as in Llama 2,
 * Mistral and TinyLlama, as an equivalent SentencePiece model. Every field that changes tokens is read, or refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "choir/tokenizer.h"
#include "data/bpe_read.h"
#include "data/tokenizer_json.h"
#include "export/import.h"
#include "export/spm_write.h"
#include "file/file.h"

static const char mark[] = "\xE2\x96\x81"; /* U+2581 stands for a space in pieces */

enum { LONGEST = 1024 }; /* maximum bytes of a piece, because all of its splits are checked */

typedef struct piece {
  int kind;
  float score;
} piece;

typedef struct tokenizer_job {
  ch_tokenizer_json file;
  json_t *pairs; /* "left right" of every merge */
  piece *piece;  /* [file.count] pieces */
  int ranks;     /* number of pieces made by merges */
  int prefix;    /* a space is inserted at the beginning of texts */
} tokenizer_job;

static int refuse_json(const tokenizer_job *j, const char *field, const json_t *value, const char *why) {
  return ch_tokenizer_json_refuse(&j->file, field, value, why);
}

/* ---- normalization of text before it is cut into pieces ---- */

/* Accepts only the replacement of spaces by U+2581 and an inserted one at the beginning. */
static int read_normalizer(tokenizer_job *j, int *marked) {
  const json_t *whole = json_object_get(j->file.root, "normalizer"), *list = json_object_get(whole, "normalizers");
  size_t count = ch_json_is_type(whole, "Sequence") ? json_array_size(list) : whole && !json_is_null(whole);
  for (size_t i = 0; i < count; i++) {
    const json_t *one = ch_json_is_type(whole, "Sequence") ? json_array_get(list, i) : whole;
    if (ch_json_is_type(one, "Prepend") && !j->prefix && ch_json_is_text(one, "prepend", mark))
      j->prefix = 1;
    else if (ch_json_is_type(one, "Replace") && ch_json_is_text(one, "content", mark) &&
             ch_json_is_text(json_object_get(one, "pattern"), "String", " "))
      *marked = 1;
    else
      return refuse_json(j, "normalizer", one, "choir knows Prepend of U+2581 and Replace of a space by it");
  }
  return CHOIR_OK;
}

static int read_pre_tokenizer(tokenizer_job *j, int *marked) {
  const json_t *p = json_object_get(j->file.root, "pre_tokenizer");
  if (!p || json_is_null(p)) return CHOIR_OK;
  if (!ch_json_is_type(p, "Metaspace"))
    return refuse_json(
        j, "pre_tokenizer", p,
        "its rule for words is none of SentencePiece's; make token ids by its own program, and give those "
        "(choir forward, choir score)");
  if (!ch_json_is_text(p, "replacement", mark) || !json_is_false(json_object_get(p, "split")))
    return refuse_json(j, "pre_tokenizer", p, "choir knows Metaspace with \"replacement\" U+2581 and \"split\" false");
  if (!ch_json_is_text(p, "prepend_scheme", "never")) {
    if (!ch_json_is_text(p, "prepend_scheme", "first") && !ch_json_is_text(p, "prepend_scheme", "always"))
      return refuse_json(j, "pre_tokenizer", p, "\"prepend_scheme\" must be always, first or never");
    j->prefix = 1;
  }
  *marked = 1;
  return CHOIR_OK;
}

static int read_text_rules(tokenizer_job *j) {
  int marked = 0;
  CH_TRY(read_pre_tokenizer(j, &marked));
  CH_TRY(read_normalizer(j, &marked));
  if (!marked) return refuse_json(j, "normalizer", NULL, "spaces must become U+2581, as SentencePiece has them");
  return CHOIR_OK;
}

/* ---- the pieces ---- */

static int64_t id_of(const tokenizer_job *j, const char *text) {
  for (int i = 0; i < j->file.count; i++)
    if (!strcmp(j->file.token[i].text, text)) return i;
  return -1;
}

/* Special tokens must not be matched in text; other added tokens would be cut out of text before BPE. */
static int read_pieces(tokenizer_job *j) {
  const json_t *unknown = json_object_get(j->file.model, "unk_token"),
               *bytes = json_object_get(j->file.model, "byte_fallback");
  if (!json_is_true(bytes)) return refuse_json(j, "model.byte_fallback", bytes, "some text would have no tokens");
  CH_TRY(CH_ALLOC(&j->piece, j->file.count, "the pieces of %s", j->file.name));
  for (int i = 0; i < j->file.count; i++) {
    const ch_json_token *t = &j->file.token[i];
    if (t->size > LONGEST)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: token %d has %zu bytes, at most %d", j->file.name, i, t->size, LONGEST);
    if (t->added && !json_is_true(json_object_get(t->added, "special")))
      return refuse_json(j, "added_tokens", t->added, "choir takes special ones only");
    char byte[8];
    snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)strtoul(t->size == 6 ? t->text + 3 : "", NULL, 16) & 255);
    j->piece[i].kind = t->added ? CH_SPM_CONTROL : strcmp(t->text, byte) ? CH_SPM_NORMAL : CH_SPM_BYTE;
  }
  int64_t id =
      id_of(j, json_is_string(unknown) ? json_string_value(unknown) : "<unk>"); /* never used: bytes cover all text */
  if (id < 0) return refuse_json(j, "model.unk_token", unknown, "SentencePiece needs one, and it must be a token");
  j->piece[id].kind = CH_SPM_UNKNOWN;
  return CHOIR_OK;
}

/* ---- the merges ---- */

static piece *normal_piece(const tokenizer_job *j, const char *text) {
  const json_t *id = json_object_get(j->file.vocab, text);
  piece *p = id ? &j->piece[json_integer_value(id)] : NULL;
  return p && p->kind == CH_SPM_NORMAL ? p : NULL;
}

/* Size of an entry of `pairs`. */
enum { PAIR = 2 * LONGEST + 2 };
static const char *pair_of(const char *left, size_t size, const char *right, char pair[PAIR]) {
  snprintf(pair, PAIR, "%.*s %s", (int)size, left, right);
  return pair;
}

/* Reads a merge. SentencePiece orders merges by the score of the resulting piece, so merges with the same result
 * must be consecutive. */
static int read_merge(tokenizer_job *j, const json_t *merge, const piece **last) {
  const char *left, *right;
  size_t size;
  char pair[PAIR];
  if (!ch_tokenizer_json_merge(merge, &left, &size, &right) || size > LONGEST || strlen(right) > LONGEST)
    return refuse_json(j, "model.merges", merge, "it is no pair of pieces");
  int again = json_object_get(j->pairs, pair_of(left, size, right, pair)) != NULL;
  ch_json_put(j->pairs, pair, json_true());
  pair[size] = 0;
  int known = normal_piece(j, pair) && normal_piece(j, right);
  strcpy(pair + size, right);
  piece *made = normal_piece(j, pair);
  if (again || !known || !made)
    return refuse_json(j, "model.merges", merge,
                       "its pieces or what they make are not in the vocabulary, or it comes twice");
  if (made != *last && made->score < 0)
    return refuse_json(j, "model.merges", merge,
                       "merges that make the same piece must be adjacent: SentencePiece has one rank");
  if (made != *last) made->score = -(float)++j->ranks;
  *last = made;
  return CHOIR_OK;
}

/* Whether the text is a single character or a piece. */
static int is_symbol(const tokenizer_job *j, const char *text, size_t size) {
  char buffer[LONGEST + 1];
  size_t first = 1;
  while (first < size && ((unsigned char)text[first] & 0xC0) == 0x80) first++;
  snprintf(buffer, sizeof buffer, "%.*s", (int)size, text);
  return first == size || normal_piece(j, buffer);
}

/* SentencePiece merges any two parts that form a piece, so every such pair must be a merge. */
static int check_piece(const tokenizer_job *j, const ch_json_token *p) {
  char pair[PAIR];
  for (size_t cut = 1; cut < p->size; cut++) {
    const char *right = p->text + cut;
    if (((unsigned char)*right & 0xC0) == 0x80 || !is_symbol(j, p->text, cut) || !is_symbol(j, right, p->size - cut))
      continue;
    if (!json_object_get(j->pairs, pair_of(p->text, cut, right, pair)))
      return ch_error(CHOIR_ERROR_UNSUPPORTED,
                      "%s: model.merges has no '%.*s' + '%s', which SentencePiece would merge: it was not made from a "
                      "SentencePiece model",
                      j->file.name, (int)cut, p->text, right);
  }
  return CHOIR_OK;
}

static int read_merges(tokenizer_job *j) {
  const piece *last = NULL;
  const json_t *merge;
  size_t i;
  json_array_foreach(j->file.merges, i, merge) CH_TRY(read_merge(j, merge, &last));
  for (int id = 0; id < j->file.count; id++) {
    piece *p = &j->piece[id];
    if (p->kind != CH_SPM_NORMAL) continue;
    CH_TRY(check_piece(j, &j->file.token[id]));
    if (!p->score) p->score = -(float)(j->ranks + 1); /* no merge results in it */
  }
  return CHOIR_OK;
}

/* ---- the whole file ---- */

static int read_tokenizer(tokenizer_job *j, const json_t *root, const char *name) {
  static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges",
                                    NULL};
  CH_TRY(ch_tokenizer_json_read(root, name, off, "SentencePiece has no such rule", &j->file));
  CH_TRY(read_text_rules(j));
  CH_TRY(read_pieces(j));
  return read_merges(j);
}

/* Converts to a SentencePiece model. The pieces of a text do not depend on "post_processor", which adds tokens
 * around them, nor on "decoder". */
static int to_spm(const json_t *root, const char *name, int64_t eos, ch_buffer *out) {
  tokenizer_job j = {.pairs = json_object()};
  ch_spm_special special[CH_SPM_SPECIALS] = {{.id = -1}, {.id = -1}, {.id = -1}, {.id = -1}};
  int code = read_tokenizer(&j, root, name), count = j.file.count;
  for (int i = 0; i < count && !code; i++) {
    const ch_json_token *t = &j.file.token[i];
    ch_spm_put_piece(out, t->text, t->size, j.piece[i].score, j.piece[i].kind);
    if (j.piece[i].kind == CH_SPM_UNKNOWN) special[CH_SPM_UNK].id = i;
  }
  if (!code) {
    special[CH_SPM_BOS].id = id_of(&j, "<s>");
    special[CH_SPM_EOS].id = eos < 0 ? id_of(&j, "</s>") : eos < count ? eos : -1;
    for (int i = 0; i < CH_SPM_SPECIALS; i++)
      if (special[i].id >= 0)
        special[i].text = j.file.token[special[i].id].text, special[i].size = j.file.token[special[i].id].size;
    ch_spm_put_settings(out, count, special, j.prefix);
    if (!out->data) code = ch_error(CHOIR_ERROR_MEMORY, "not enough memory for a tokenizer of %d pieces", count);
  }
  json_decref(j.pairs);
  ch_tokenizer_json_free(&j.file);
  free(j.piece);
  return code;
}

/* Stores byte-level BPE with a note. `root`, the parsed file, already has a note of `eos`, and gets one of `tokens`
 * if the model has more than the file; it is not parsed again, because a large file takes half a second. */
static int keep_bpe(json_t *root, const char *bytes, size_t size, const char *name, int64_t eos, int64_t tokens,
                    choir_tokenizer **tokenizer) {
  for (int64_t max = 0;; max = tokens) {
    ch_buffer file = {0};
    int code = ch_bpe_note(bytes, size, eos, max, &file);
    if (code) return free(file.data), code;
    CH_TRY(ch_tokenizer_of(file.data, file.size, root, name, tokenizer));
    if (max || (*tokenizer)->vocab >= tokens) return CHOIR_OK;
    choir_tokenizer_free(*tokenizer);
    *tokenizer = NULL;
    json_t *note = json_object_get(root, CH_TOKENIZER_JSON_OURS);
    if (note && eos < 0) { /* the file's own id, not choir's note */
      root = NULL;
      continue;
    }
    if (!note) json_object_set_new(root, CH_TOKENIZER_JSON_OURS, note = json_object());
    if (json_object_set_new(note, "tokens", json_integer(tokens)))
      return ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for a note", name);
  }
}

int ch_import_tokenizer(const char *bytes, size_t size, const char *name, int64_t eos, int64_t tokens,
                        choir_tokenizer **tokenizer) {
  json_t *root;
  ch_buffer noted = {0}, model = {0};
  *tokenizer = NULL;
  int code = ch_bpe_note(bytes, size, eos, 0, &noted);
  if (!code) code = ch_json_parse(noted.data, noted.size, name, &root);
  free(noted.data);
  CH_TRY(code);
  if (ch_bpe_is(root))
    code = keep_bpe(root, bytes, size, name, eos, tokens, tokenizer);
  else if ((code = to_spm(root, name, eos, &model)))
    free(model.data);
  else
    code = ch_tokenizer_of(model.data, model.size, NULL, name, tokenizer);
  json_decref(root);
  return code;
}

int choir_tokenizer_import(const char *from, int64_t eos, int64_t tokens, const char *out, int *pieces) {
  char *bytes;
  size_t size;
  choir_tokenizer *t;
  CH_TRY(ch_file_read(from, (size_t)256 << 20, &bytes, &size));
  int code = ch_import_tokenizer(bytes, size, from, eos, tokens, &t);
  free(bytes);
  if (!code) code = ch_file_save(out, t->bytes, t->size);
  *pieces = choir_tokenizer_vocab_size(t);
  choir_tokenizer_free(t);
  return code;
}
