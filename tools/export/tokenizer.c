/* Writes a tokenizer as tokenizer.json of Hugging Face's tokenizers: a SentencePiece model is converted, with the
 * same tokens; byte-level BPE is written as it was read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/bpe_read.h"
#include "data/encoder.h"
#include "export/plan.h"
#include "file/file.h"
#include "file/json.h"

static json_t *piece_json(const choir_tokenizer *t, int id) {
  size_t size;
  const char *piece = ch_spm_piece(t->spm, id, &size);
  return json_stringn(piece, size);
}

typedef struct scored {
  float score;
  int id;
} scored;

static int by_score(const void *a, const void *b) {
  const scored *x = a, *y = b;
  if (x->score != y->score) return x->score < y->score ? 1 : -1;
  return (x->id > y->id) - (x->id < y->id);
}

/* Adds all splits of a piece into two pieces of the vocabulary, as merges. */
static void add_splits(const choir_tokenizer *t, int id, const json_t *vocab, json_t *merges) {
  size_t size;
  const char *piece = ch_spm_piece(t->spm, id, &size);
  char *left = malloc(size + 1);
  if (!left) return ch_json_add(merges, NULL);
  for (size_t cut = 1; cut < size; cut++) {
    if (((unsigned char)piece[cut] & 0xC0) == 0x80) continue; /* inside a character */
    memcpy(left, piece, cut);
    left[cut] = 0;
    if (json_object_get(vocab, left) && json_object_get(vocab, piece + cut))
      ch_json_add(merges, json_pack("[s,s]", left, piece + cut));
  }
  free(left);
}

/* Lists the merges. SentencePiece merges the pair whose piece has the best score; tokenizers merges the pair that is
 * first in this list. */
static json_t *merges_json(const choir_tokenizer *t, const json_t *vocab) {
  json_t *merges = json_array();
  scored *pieces = reallocarray(NULL, (size_t)t->vocab, sizeof *pieces);
  int count = 0;
  for (int i = 0; pieces && i < t->vocab; i++)
    if (ch_spm_kind(t->spm, i) == CH_PIECE_NORMAL) pieces[count++] = (scored){ch_spm_score(t->spm, i), i};
  if (!pieces) ch_json_add(merges, NULL);
  if (count) qsort(pieces, (size_t)count, sizeof *pieces, by_score);
  for (int i = 0; i < count; i++) add_splits(t, pieces[i].id, vocab, merges);
  free(pieces);
  return merges;
}

static json_t *bpe_json(const choir_tokenizer *t, const char *unknown) {
  json_t *vocab = json_object();
  size_t size;
  for (int i = 0; i < t->vocab; i++) ch_json_put(vocab, ch_spm_piece(t->spm, i, &size), json_integer(i));
  json_t *merges = merges_json(t, vocab);
  return json_pack("{s:s, s:n, s:s?, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
                   unknown, "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 1, "byte_fallback", 1,
                   "ignore_merges", 0, "vocab", vocab, "merges", merges);
}

static json_t *unigram_json(const choir_tokenizer *t, int unknown) {
  json_t *vocab = json_array();
  for (int i = 0; i < t->vocab; i++)
    ch_json_add(vocab, json_pack("[o,f]", piece_json(t, i), (double)ch_spm_score(t->spm, i)));
  return json_pack("{s:s, s:i, s:b, s:o}", "type", "Unigram", "unk_id", unknown, "byte_fallback", 1, "vocab", vocab);
}

static json_t *special_json(const choir_tokenizer *t) {
  json_t *special = json_array();
  for (int i = 0; i < t->vocab; i++) {
    ch_piece_kind kind = ch_spm_kind(t->spm, i);
    if (kind == CH_PIECE_CONTROL || kind == CH_PIECE_UNKNOWN)
      ch_json_add(special, json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", i, "content", piece_json(t, i),
                                     "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
  }
  return special;
}

/* Pieces have U+2581 for spaces; no other normalization. */
static json_t *tokenizer_json(const choir_tokenizer *t, json_t *cut, json_t *model) {
  static const char mark[] = "\xE2\x96\x81";
  return json_pack(
      "{s:s, s:n, s:n, s:o, s:{s:s, s:{s:s}, s:s}, s:o?, s:n, s:{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]}, s:o}",
      "version", "1.0", "truncation", "padding", "added_tokens", special_json(t), "normalizer", "type", "Replace",
      "pattern", "String", " ", "content", mark, "pre_tokenizer", cut, "post_processor", "decoder", "type", "Sequence",
      "decoders", "type", "Replace", "pattern", "String", mark, "content", " ", "type", "ByteFallback", "type", "Fuse",
      "model", model);
}

/* Makes tokenizer.json from a SentencePiece model; *unknown: the piece for unknown text. */
static json_t *of_spm(const choir_tokenizer *t, const char **unknown) {
  int id = 0;
  size_t size;
  for (int i = 0; i < t->vocab; i++)
    if (ch_spm_kind(t->spm, i) == CH_PIECE_UNKNOWN) *unknown = ch_spm_piece(t->spm, id = i, &size);
  if (ch_spm_spec_type(t->bytes, t->size) != CH_SPM_UNIGRAM) return tokenizer_json(t, NULL, bpe_json(t, *unknown));
  /* Unigram models of tokenizers match a text like "<0x41>" with the piece of that byte, which SentencePiece does
   * not: such texts are split after the first character. */
  json_t *cut = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", "<(?=0x[0-9A-F]{2}>)",
                          "behavior", "MergedWithPrevious", "invert", 0);
  return tokenizer_json(t, cut, unigram_json(t, id));
}

/* Whether other programs add tokens to a text by default, according to an imported file's post_processor; choir adds
 * none. A ByteLevel post_processor changes offsets only. */
static int adds_tokens(const json_t *root) {
  const json_t *post = json_object_get(root, "post_processor");
  return post && !json_is_null(post) && !ch_json_is_type(post, "ByteLevel");
}

/* Whether the file truncates or pads texts; choir does neither. */
static int cuts_or_pads(const json_t *root) {
  return json_is_object(json_object_get(root, "truncation")) || json_is_object(json_object_get(root, "padding"));
}

/* Writes the file as it was read, or without its post_processor: its tokens are choir's, without additional ones. */
static int save_bpe(const choir_tokenizer *t, const char *path) {
  ch_buffer plain = {0};
  json_t *root = NULL;
  int code = ch_bpe_plain(t->bytes, t->size, &plain);
  if (!code) code = ch_json_parse(plain.data, plain.size, path, &root);
  if (!code && (adds_tokens(root) || cuts_or_pads(root))) {
    if (adds_tokens(root)) {
      ch_notice(
          "tokenizer.json: its post_processor puts tokens around every text, which choir does not; it is left out, so "
          "that other programs give the model the tokens that choir gave it");
      json_object_set_new(root, "post_processor", json_null());
    }
    json_object_set_new(root, "truncation", json_null());
    json_object_set_new(root, "padding", json_null());
    code = ch_json_save(json_incref(root), path);
  } else if (!code) {
    code = ch_file_save(path, plain.data, plain.size);
  }
  json_decref(root);
  free(plain.data);
  return code;
}

int ch_export_tokenizer(const choir_tokenizer *t, int length, const char *folder) {
  const char *path = CH_IN(folder, "tokenizer.json"), *unknown = NULL;
  CH_TRY(t->bpe ? save_bpe(t, path) : ch_json_save(of_spm(t, &unknown), path));
  const char *end = t->piece[t->eos]; /* also used for padding, which attention_mask hides: batches need some token */
  return ch_json_save(
      json_pack("{s:s, s:s, s:s, s:s?, s:i, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "eos_token", end,
                "pad_token", end, "unk_token", unknown, "model_max_length", length, "clean_up_tokenization_spaces", 0),
      CH_IN(folder, "tokenizer_config.json"));
}
