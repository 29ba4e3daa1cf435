/* tokenizer.json of Hugging Face's tokenizers as a SentencePiece model, where that has the same rule: BPE with bytes
 * for what has no piece, as Llama 2, Mistral and TinyLlama have it. Everything that changes tokens is read, or refused.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choir/tokenizer.h"
#include "data/encoder.h"
#include "export/import.h"
#include "export/spm_write.h"
#include "file/file.h"

static const char mark[] = "\xE2\x96\x81"; /* U+2581 stands for a space in pieces */

enum { LONGEST = 1024 }; /* bytes of a piece: all its splits are looked at */

typedef struct piece {
  const char *text; /* NULL: none has this number */
  size_t size;
  int kind;
  float score;
} piece;

typedef struct job {
  const char *name;
  const json_t *root, *model, *vocab, *merges;
  json_t *pairs; /* "left right" of every merge */
  piece *piece;
  int count, ranks; /* pieces; those that merges make */
  int prefix;       /* a space is put in front of texts */
} job;

static int refuse(const job *j, const char *field, const json_t *value, const char *why) {
  char text[80];
  return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: %s is %s: %s", j->name, field,
                  value ? ch_json_show(value, text, sizeof text) : "missing", why);
}

/* ---- what is done to text before it is cut into pieces ---- */

static int is_type(const json_t *object, const char *type) {
  const char *found = json_string_value(json_object_get(object, "type"));
  return found && !strcmp(found, type);
}

static int is_text(const json_t *object, const char *key, const char *wanted) {
  const char *found = json_string_value(json_object_get(object, key));
  return found && !strcmp(found, wanted);
}

/* Spaces become marks, and a mark may be put in front; nothing else. */
static int read_normalizer(job *j, int *marked) {
  const json_t *whole = json_object_get(j->root, "normalizer"), *list = json_object_get(whole, "normalizers");
  size_t count = is_type(whole, "Sequence") ? json_array_size(list) : whole && !json_is_null(whole);
  for (size_t i = 0; i < count; i++) {
    const json_t *one = is_type(whole, "Sequence") ? json_array_get(list, i) : whole;
    if (is_type(one, "Prepend") && !j->prefix && is_text(one, "prepend", mark))
      j->prefix = 1;
    else if (is_type(one, "Replace") && is_text(one, "content", mark) &&
             is_text(json_object_get(one, "pattern"), "String", " "))
      *marked = 1;
    else
      return refuse(j, "normalizer", one, "choir knows Prepend of U+2581 and Replace of a space by it");
  }
  return CHOIR_OK;
}

static int read_pre_tokenizer(job *j, int *marked) {
  const json_t *p = json_object_get(j->root, "pre_tokenizer");
  if (!p || json_is_null(p)) return CHOIR_OK;
  if (!is_type(p, "Metaspace"))
    return refuse(j, "pre_tokenizer", p,
                  "its rule for words is none of SentencePiece's; make token ids by its own program, and give those "
                  "(choir forward, choir score)");
  if (!is_text(p, "replacement", mark) || !json_is_false(json_object_get(p, "split")))
    return refuse(j, "pre_tokenizer", p, "choir knows Metaspace with \"replacement\" U+2581 and \"split\" false");
  if (!is_text(p, "prepend_scheme", "never")) {
    if (!is_text(p, "prepend_scheme", "first") && !is_text(p, "prepend_scheme", "always"))
      return refuse(j, "pre_tokenizer", p, "\"prepend_scheme\" must be always, first or never");
    j->prefix = 1;
  }
  *marked = 1;
  return CHOIR_OK;
}

static int read_text_rules(job *j) {
  static const char *const none[] = {"truncation", "padding"};
  int marked = 0;
  for (int i = 0; i < 2; i++) {
    const json_t *value = json_object_get(j->root, none[i]);
    if (value && !json_is_null(value)) return refuse(j, none[i], value, "it must be null");
  }
  CH_TRY(read_pre_tokenizer(j, &marked));
  CH_TRY(read_normalizer(j, &marked));
  if (!marked) return refuse(j, "normalizer", NULL, "spaces must become U+2581, as SentencePiece has them");
  return CHOIR_OK;
}

/* ---- the pieces ---- */

static int check_model(job *j) {
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
  static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"};
  const json_t *type = json_object_get(j->model, "type"), *bytes = json_object_get(j->model, "byte_fallback");
  if (type && !is_type(j->model, "BPE")) return refuse(j, "model.type", type, "choir reads \"BPE\"");
  CH_TRY(ch_json_check_keys(j->model, j->name, known));
  for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
    const json_t *value = json_object_get(j->model, off[i]);
    const char *text = json_string_value(value);
    char field[64];
    snprintf(field, sizeof field, "model.%s", off[i]);
    if (value && !json_is_null(value) && !json_is_false(value) && !(text && !*text))
      return refuse(j, field, value, "SentencePiece has no such rule");
  }
  if (!json_is_true(bytes)) return refuse(j, "model.byte_fallback", bytes, "some text would have no tokens");
  return CHOIR_OK;
}

/* A number and its text, which may be given twice if it is the same. */
static int add_piece(job *j, const char *text, const json_t *id) {
  json_int_t i = json_is_integer(id) ? json_integer_value(id) : -1;
  size_t size = strlen(text);
  if (i < 0 || i >= j->count || (j->piece[i].text && strcmp(j->piece[i].text, text)))
    return ch_error(CHOIR_ERROR_FORMAT,
                    "%s: token '%.40s' must have a number of its own, below the count of tokens, %d", j->name, text,
                    j->count);
  if (size > LONGEST)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: token %d has %zu bytes, at most %d", j->name, (int)i, size, LONGEST);
  char byte[8];
  snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)strtoul(size == 6 ? text + 3 : "", NULL, 16) & 255);
  j->piece[i] = (piece){.text = text, .size = size, .kind = strcmp(text, byte) ? CH_SPM_NORMAL : CH_SPM_BYTE};
  return CHOIR_OK;
}

/* Special tokens are not looked for in text here; others would be cut out of it first. */
static int add_special(job *j, const json_t *added) {
  const char *text = json_string_value(json_object_get(added, "content"));
  const json_t *id = json_object_get(added, "id");
  if (!text || !json_is_true(json_object_get(added, "special")))
    return refuse(j, "added_tokens", added, "choir takes special ones only, with \"content\" and \"id\"");
  CH_TRY(add_piece(j, text, id));
  j->piece[json_integer_value(id)].kind = CH_SPM_CONTROL;
  return CHOIR_OK;
}

static int64_t id_of(const job *j, const char *text) {
  for (int i = 0; i < j->count; i++)
    if (!strcmp(j->piece[i].text, text)) return i;
  return -1;
}

static int read_pieces(job *j) {
  const json_t *added = json_object_get(j->root, "added_tokens"), *value,
               *unknown = json_object_get(j->model, "unk_token");
  const char *text;
  size_t i;
  j->count = (int)json_object_size(j->vocab);
  json_array_foreach(added, i, value) {
    text = json_string_value(json_object_get(value, "content"));
    j->count += text && !json_object_get(j->vocab, text);
  }
  if (j->count > CH_VOCAB_LIMIT)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %d pieces; choir takes at most %d", j->name, j->count, CH_VOCAB_LIMIT);
  j->piece = calloc((size_t)j->count + 1, sizeof *j->piece);
  if (!j->piece) return ch_error(CHOIR_ERROR_MEMORY, "not enough memory for %d pieces", j->count);
  json_object_foreach((json_t *)(uintptr_t)j->vocab, text, value) CH_TRY(add_piece(j, text, value));
  json_array_foreach(added, i, value) CH_TRY(add_special(j, value));
  for (int id = 0; id < j->count; id++)
    if (!j->piece[id].text) return ch_error(CHOIR_ERROR_FORMAT, "%s: no token has number %d", j->name, id);
  int64_t id = id_of(j, json_is_string(unknown) ? json_string_value(unknown) : "<unk>"); /* bytes leave it no text */
  if (id < 0) return refuse(j, "model.unk_token", unknown, "SentencePiece needs one, and it must be a token");
  j->piece[id].kind = CH_SPM_UNKNOWN;
  return CHOIR_OK;
}

/* ---- the merges ---- */

static piece *normal_piece(const job *j, const char *text) {
  const json_t *id = json_object_get(j->vocab, text);
  piece *p = id ? &j->piece[json_integer_value(id)] : NULL;
  return p && p->kind == CH_SPM_NORMAL ? p : NULL;
}

/* The two halves of a merge, neither empty: "left right", or ["left", "right"]. */
static int split_merge(const json_t *merge, const char **left, size_t *size, const char **right) {
  const char *text = json_string_value(merge);
  *left = text ? text : json_string_value(json_array_get(merge, 0));
  if (!*left || (!text && json_array_size(merge) != 2)) return 0;
  *size = text ? strcspn(text, " ") : strlen(*left);
  *right = text ? text + *size + (text[*size] == ' ') : json_string_value(json_array_get(merge, 1));
  return *size && *right && **right && !(text && strchr(*right, ' '));
}

/* A pair as `pairs` has it. */
enum { PAIR = 2 * LONGEST + 2 };
static const char *pair_of(const char *left, size_t size, const char *right, char pair[PAIR]) {
  snprintf(pair, PAIR, "%.*s %s", (int)size, left, right);
  return pair;
}

/* SentencePiece merges by the score of the piece that is made, so merges that make the same one must stand together. */
static int read_merge(job *j, const json_t *merge, const piece **last) {
  const char *left, *right;
  size_t size;
  char pair[PAIR];
  if (!split_merge(merge, &left, &size, &right) || size > LONGEST || strlen(right) > LONGEST)
    return refuse(j, "model.merges", merge, "it is no pair of pieces");
  int again = json_object_get(j->pairs, pair_of(left, size, right, pair)) != NULL;
  ch_json_put(j->pairs, pair, json_true());
  pair[size] = 0;
  int known = normal_piece(j, pair) && normal_piece(j, right);
  strcpy(pair + size, right);
  piece *made = normal_piece(j, pair);
  if (again || !known || !made)
    return refuse(j, "model.merges", merge,
                  "its pieces or what they make are not in the vocabulary, or it comes twice");
  if (made != *last && made->score < 0)
    return refuse(j, "model.merges", merge, "others that make the same piece stand apart: SentencePiece has one rank");
  if (made != *last) made->score = -(float)++j->ranks;
  *last = made;
  return CHOIR_OK;
}

/* A character by itself, or a piece. */
static int is_symbol(const job *j, const char *text, size_t size) {
  char room[LONGEST + 1];
  size_t first = 1;
  while (first < size && ((unsigned char)text[first] & 0xC0) == 0x80) first++;
  snprintf(room, sizeof room, "%.*s", (int)size, text);
  return first == size || normal_piece(j, room);
}

/* SentencePiece merges whatever two parts make up a piece, so every such pair must be there. */
static int check_piece(const job *j, const piece *p) {
  char pair[PAIR];
  for (size_t i = 0; i < p->size; i++)
    if (ch_is_control(p->text[i]))
      return ch_error(CHOIR_ERROR_UNSUPPORTED,
                      "%s: a token has control character 0x%02X: choir encodes those as bytes always", j->name,
                      (unsigned char)p->text[i]);
  for (size_t cut = 1; cut < p->size; cut++) {
    const char *right = p->text + cut;
    if (((unsigned char)*right & 0xC0) == 0x80 || !is_symbol(j, p->text, cut) || !is_symbol(j, right, p->size - cut))
      continue;
    if (!json_object_get(j->pairs, pair_of(p->text, cut, right, pair)))
      return ch_error(CHOIR_ERROR_UNSUPPORTED,
                      "%s: model.merges has no '%.*s' + '%s', which SentencePiece would merge: it was not made from a "
                      "SentencePiece model",
                      j->name, (int)cut, p->text, right);
  }
  return CHOIR_OK;
}

static int read_merges(job *j) {
  const piece *last = NULL;
  const json_t *merge;
  size_t i;
  json_array_foreach(j->merges, i, merge) CH_TRY(read_merge(j, merge, &last));
  for (int id = 0; id < j->count; id++) {
    piece *p = &j->piece[id];
    if (p->kind != CH_SPM_NORMAL) continue;
    CH_TRY(check_piece(j, p));
    if (!p->score) p->score = -(float)(j->ranks + 1); /* nothing makes it */
  }
  return CHOIR_OK;
}

/* ---- all together ---- */

static int read_all(job *j) {
  static const char *const known[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                      "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
  json_t *model, *vocab, *merges;
  CH_TRY(ch_json_check_keys(j->root, j->name, known));
  CH_TRY(ch_json_get_object(j->root, j->name, "model", &model));
  j->model = model;
  CH_TRY(read_text_rules(j));
  CH_TRY(check_model(j));
  CH_TRY(ch_json_get_object(model, j->name, "vocab", &vocab));
  CH_TRY(ch_json_get_array(model, j->name, "merges", &merges));
  j->vocab = vocab, j->merges = merges;
  CH_TRY(read_pieces(j));
  return read_merges(j);
}

/* Which pieces a text has depends neither on "post_processor", which adds others around them, nor on "decoder". */
int ch_import_tokenizer(const json_t *root, const char *name, int64_t eos, ch_buffer *out) {
  job j = {.name = name, .root = root, .pairs = json_object()};
  ch_spm_special special[CH_SPM_SPECIALS] = {{.id = -1}, {.id = -1}, {.id = -1}, {.id = -1}};
  int code = read_all(&j);
  for (int i = 0; i < j.count && !code; i++) {
    const piece *p = &j.piece[i];
    ch_spm_put_piece(out, p->text, p->size, p->score, p->kind);
    if (p->kind == CH_SPM_UNKNOWN) special[CH_SPM_UNK].id = i;
  }
  if (!code) {
    special[CH_SPM_BOS].id = id_of(&j, "<s>");
    special[CH_SPM_EOS].id = eos < 0 ? id_of(&j, "</s>") : eos < j.count ? eos : -1;
    for (int i = 0; i < CH_SPM_SPECIALS; i++)
      if (special[i].id >= 0)
        special[i].text = j.piece[special[i].id].text, special[i].size = j.piece[special[i].id].size;
    ch_spm_put_settings(out, j.count, special, j.prefix);
    if (!out->data) code = ch_error(CHOIR_ERROR_MEMORY, "not enough memory for a tokenizer of %d pieces", j.count);
  }
  json_decref(j.pairs);
  free(j.piece);
  return code;
}

int choir_tokenizer_import(const char *from, int64_t eos, const char *out) {
  json_t *root;
  ch_buffer model = {0};
  choir_tokenizer *t = NULL;
  CH_TRY(ch_json_load(from, &root));
  int code = ch_import_tokenizer(root, from, eos, &model);
  json_decref(root);
  if (!code)
    code = ch_tokenizer_of(model.data, model.size, from, &t);
  else
    free(model.data);
  if (!code) code = ch_file_save(out, t->bytes, t->size);
  choir_tokenizer_free(t);
  return code;
}
