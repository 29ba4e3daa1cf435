/* Writes the vocabulary of a tokenizer to a GGUF file. */
#include <stdio.h>

#include "data/bpe_read.h"
#include "data/spm.h"
#include "data/tokenizer_json.h"
#include "export/gguf.h"
#include "export/spm_write.h"

/* The text of the mask token, as in LLaDA's tokenizers. It is a control token: it never matches text. */
static const char mask_text[] = "<|mdm_mask|>";

/* ggml's number for the type of a piece. */
static int32_t kind_of(const ch_spm *spm, int id) {
  static const int32_t kinds[] = {[CH_PIECE_NORMAL] = 1,
                                  [CH_PIECE_UNKNOWN] = 2,
                                  [CH_PIECE_CONTROL] = 3,
                                  [CH_PIECE_UNUSED] = 5,
                                  [CH_PIECE_BYTE] = 6};
  return kinds[ch_spm_kind(spm, id)];
}

/* SentencePiece's BPE, "llama": merges the pair whose piece has the best score, leftmost first. */
static void put_spm(ch_gguf *g, const choir_tokenizer *t, int mask) {
  uint64_t count = (uint64_t)t->vocab + (uint64_t)mask;
  ch_gguf_put_text(g, "tokenizer.ggml.model", "llama");
  ch_gguf_put_text(g, "tokenizer.ggml.pre", "default");
  ch_gguf_put_array(g, "tokenizer.ggml.tokens", CH_GGUF_TEXT, count);
  for (int i = 0; i < t->vocab; i++) {
    size_t size;
    const char *piece = ch_spm_piece(t->spm, i, &size);
    ch_gguf_add_text(g, piece, size);
  }
  if (mask) ch_gguf_add_text(g, mask_text, strlen(mask_text));
  ch_gguf_put_array(g, "tokenizer.ggml.scores", CH_GGUF_F32, count);
  for (int i = 0; i < t->vocab; i++) ch_gguf_add(g, &(float){ch_spm_score(t->spm, i)});
  if (mask) ch_gguf_add(g, &(float){0});
  ch_gguf_put_array(g, "tokenizer.ggml.token_type", CH_GGUF_I32, count);
  for (int i = 0; i < t->vocab; i++) ch_gguf_add(g, &(int32_t){kind_of(t->spm, i)});
  if (mask) ch_gguf_add(g, &(int32_t){CH_SPM_CONTROL});
  for (int i = 0; i < t->vocab; i++)
    if (ch_spm_kind(t->spm, i) == CH_PIECE_UNKNOWN) ch_gguf_put_u32(g, "tokenizer.ggml.unknown_token_id", (uint32_t)i);
}

static int kind_of_token(const ch_json_token *token) {
  return !token->added                                            ? CH_SPM_NORMAL
         : json_is_true(json_object_get(token->added, "special")) ? CH_SPM_CONTROL
                                                                  : CH_SPM_USER;
}

static int join(const json_t *merge, ch_buffer *pair) {
  const char *left, *right;
  size_t size;
  if (!ch_tokenizer_json_merge(merge, &left, &size, &right)) return ch_error(CHOIR_ERROR_FORMAT, "a merge is no pair");
  CH_TRY(ch_buffer_append(pair, left, size));
  CH_TRY(ch_buffer_append(pair, " ", 1));
  return ch_buffer_append(pair, right, strlen(right));
}

/* Byte-level BPE, "gpt2": texts of tokens and merges as the file has them. llama.cpp does not normalize. */
static int put_bpe(ch_gguf *g, const choir_tokenizer *t, const char *pre, int mask) {
  uint64_t count = (uint64_t)t->vocab + (uint64_t)mask;
  static const char *const off[] = {NULL};
  ch_tokenizer_json file = {0};
  ch_buffer pair = {0};
  json_t *root;
  CH_TRY(ch_json_parse(t->bytes, t->size, "tokenizer.model", &root));
  int code = ch_tokenizer_json_read(root, "tokenizer.model", off, "", &file);
  ch_gguf_put_text(g, "tokenizer.ggml.model", "gpt2");
  ch_gguf_put_text(g, "tokenizer.ggml.pre", pre);
  ch_gguf_put_array(g, "tokenizer.ggml.tokens", CH_GGUF_TEXT, count);
  for (int i = 0; i < t->vocab && !code; i++)
    if (i < file.count)
      ch_gguf_add_text(g, file.token[i].text, file.token[i].size);
    else
      ch_gguf_add_text(g, t->piece[i], strlen(t->piece[i]));
  if (mask) ch_gguf_add_text(g, mask_text, strlen(mask_text));
  ch_gguf_put_array(g, "tokenizer.ggml.token_type", CH_GGUF_I32, count);
  for (int i = 0; i < t->vocab && !code; i++)
    ch_gguf_add(g, &(int32_t){i < file.count ? kind_of_token(&file.token[i]) : CH_SPM_UNUSED});
  if (mask) ch_gguf_add(g, &(int32_t){CH_SPM_CONTROL});
  ch_gguf_put_array(g, "tokenizer.ggml.merges", CH_GGUF_TEXT, json_array_size(file.merges));
  for (size_t i = 0; i < json_array_size(file.merges) && !code; i++) {
    pair.size = 0;
    code = join(json_array_get(file.merges, i), &pair);
    if (!code) ch_gguf_add_text(g, pair.data, pair.size);
  }
  free(pair.data);
  ch_tokenizer_json_free(&file);
  json_decref(root);
  return code;
}

static uint32_t token_or(int64_t token, const choir_tokenizer *t) {
  return (uint32_t)(token >= 0 && token < t->vocab ? token : t->eos);
}

/* Writes the tokens that begin and end texts. Without a beginning token, the ending token is used to start an empty
 * prompt, and is never added to texts. */
static void put_ends(ch_gguf *g, const choir_tokenizer *t, const ch_imported *imported) {
  ch_gguf_put_u32(g, "tokenizer.ggml.bos_token_id", token_or(imported->bos, t));
  ch_gguf_put_u32(g, "tokenizer.ggml.eos_token_id", token_or(imported->eos, t));
  ch_gguf_put_flag(g, "tokenizer.ggml.add_space_prefix", imported->add_space);
  ch_gguf_put_flag(g, "tokenizer.ggml.add_bos_token", imported->add_bos && imported->bos >= 0);
  ch_gguf_put_flag(g, "tokenizer.ggml.add_eos_token", 0);
}

int ch_gguf_put_tokenizer(ch_gguf *g, const choir_tokenizer *t, int mask, const ch_imported *imported) {
  if (!t)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "the checkpoint has no tokenizer.model, and a GGUF file needs a vocabulary");
  const char *pre = t->bpe ? t->bpe->words.cutting->gguf[t->bpe->whole != NULL] : NULL;
  if (t->bpe && !pre)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "tokenizer.model has \"ignore_merges\" with a pattern for words that llama.cpp has without only: "
                    "export to --format hf");
  if (t->spm && ch_spm_spec_type(t->bytes, t->size) == CH_SPM_UNIGRAM)
    return ch_error(
        CHOIR_ERROR_UNSUPPORTED,
        "tokenizer.model is of type unigram: llama.cpp loses characters that have no piece. Train one of type "
        "bpe (choir tokenizer train --type bpe), or export to --format hf, where unigram is exact");
  if (t->spm)
    put_spm(g, t, mask);
  else
    CH_TRY(put_bpe(g, t, pre, mask));
  put_ends(g, t, imported);
  return CHOIR_OK;
}
