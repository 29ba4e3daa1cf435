/* The vocabulary of a GGUF file as a tokenizer: a SentencePiece model, or a tokenizer.json of byte-level BPE. */
#include <endian.h>
#include <string.h>

#include "base/buffer.h"
#include "base/error.h"
#include "export/gguf_read.h"
#include "export/spm_write.h"

int ch_gguf_tokenizer(const ch_gguf_in *in, const char *name, ch_buffer *model) {
  static const char *const keys[] = {"unknown", "bos", "eos", "padding"}; /* as CH_SPM_UNK and so on */
  const char *type = json_string_value(json_object_get(in->keys, "tokenizer.ggml.model"));
  const ch_gguf_array *texts = ch_gguf_find_array(in, "tokenizer.ggml.tokens", CH_GGUF_TEXT),
                      *scores = ch_gguf_find_array(in, "tokenizer.ggml.scores", CH_GGUF_F32),
                      *kinds = ch_gguf_find_array(in, "tokenizer.ggml.token_type", CH_GGUF_I32);
  if (type && !strcmp(type, "gpt2")) return ch_gguf_bpe(in, name, model);
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
    uint32_t bits, kind;
    float score;
    const char *text = ch_gguf_next_text(&at, &size);
    memcpy(&bits, scores->at + i * sizeof bits, sizeof bits);
    memcpy(&kind, kinds->at + i * sizeof kind, sizeof kind);
    bits = le32toh(bits), kind = le32toh(kind);
    memcpy(&score, &bits, sizeof score);
    ch_spm_put_piece(model, text, size, score,
                     kind >= CH_SPM_NORMAL && kind <= CH_SPM_BYTE ? (int)kind : CH_SPM_NORMAL);
    for (int s = 0; s < CH_SPM_SPECIALS; s++)
      if (special[s].id == (int64_t)i) special[s].text = text, special[s].size = size;
  }
  ch_spm_put_settings(model, (int64_t)texts->count, special, 0);
  return model->data ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for its tokenizer", name);
}
