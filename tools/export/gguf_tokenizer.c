/* The vocabulary of a GGUF file as a SentencePiece model: kinds of pieces have the same numbers in both. */
#include <endian.h>
#include <string.h>

#include "base/error.h"
#include "base/buffer.h"
#include "export/gguf_read.h"

/* Protocol buffers write a number in pieces of seven bits, and before a field its number and type. */
static void put_number(ch_buffer *b, uint64_t value) {
  unsigned char digit[10];
  size_t n = 0;
  do {
    digit[n] = (unsigned char)(value & 127);
    value >>= 7;
    if (value) digit[n] |= 128;
    n++;
  } while (value);
  ch_buffer_append(b, digit, n);
}

enum { VARINT = 0, BYTES = 2, FIXED32 = 5 };
static void put_tag(ch_buffer *b, int field, int type) { put_number(b, (uint64_t)(field << 3 | type)); }

static void put_flag(ch_buffer *b, int field, uint64_t value) {
  put_tag(b, field, VARINT);
  put_number(b, value);
}

static void put_bytes(ch_buffer *b, int field, const void *data, size_t size) {
  put_tag(b, field, BYTES);
  put_number(b, size);
  ch_buffer_append(b, data, size);
}

static void put_piece(ch_buffer *b, const char *text, size_t size, uint32_t score, uint32_t kind) {
  ch_buffer piece = {0};
  put_bytes(&piece, 1, text, size);
  put_tag(&piece, 2, FIXED32);
  ch_buffer_append(&piece, &score, sizeof score); /* little-endian, as it stands there */
  put_flag(&piece, 3, kind);
  put_bytes(b, 1, piece.data, piece.size);
  free(piece.data);
}

/* The settings that encoding asks for: BPE, bytes for what has no piece, and the special pieces. */
static void put_specs(ch_buffer *b, const ch_gguf_in *in, uint64_t pieces) {
  enum { MODEL_TYPE = 3, VOCAB_SIZE = 4, BYTE_FALLBACK = 35, UNK = 40, BOS, EOS, PAD, BPE = 2 };
  static const struct {
    const char *key;
    int field;
  } special[] = {{"unknown", UNK}, {"bos", BOS}, {"eos", EOS}, {"padding", PAD}};
  ch_buffer trainer = {0}, normalizer = {0};
  put_flag(&trainer, MODEL_TYPE, BPE);
  put_flag(&trainer, VOCAB_SIZE, pieces);
  put_flag(&trainer, BYTE_FALLBACK, 1);
  for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
    char key[64];
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", special[i].key);
    const json_t *id = json_object_get(in->keys, key);
    put_flag(&trainer, special[i].field, id ? (uint64_t)json_integer_value(id) : special[i].field == UNK ? 0 : ~0ULL);
  }
  put_bytes(b, 2, trainer.data, trainer.size);
  put_bytes(&normalizer, 1, "identity", strlen("identity"));
  put_flag(&normalizer, 3, 0); /* add_dummy_prefix */
  put_flag(&normalizer, 4, 0); /* remove_extra_whitespaces */
  put_flag(&normalizer, 5, 1); /* escape_whitespaces */
  put_bytes(b, 3, normalizer.data, normalizer.size);
  free(trainer.data);
  free(normalizer.data);
}

int ch_gguf_tokenizer(const ch_gguf_in *in, const char *name, ch_buffer *model) {
  const char *type = json_string_value(json_object_get(in->keys, "tokenizer.ggml.model"));
  const ch_gguf_array *texts = ch_gguf_find_array(in, "tokenizer.ggml.tokens", CH_GGUF_TEXT),
                      *scores = ch_gguf_find_array(in, "tokenizer.ggml.scores", CH_GGUF_F32),
                      *kinds = ch_gguf_find_array(in, "tokenizer.ggml.token_type", CH_GGUF_I32);
  if (!type || strcmp(type, "llama"))
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "%s: \"tokenizer.ggml.model\" is \"%.40s\": choir reads SentencePiece's, \"llama\"", name,
                    type ? type : "none");
  if (!texts || !scores || !kinds || scores->count != texts->count || kinds->count != texts->count)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: the tokenizer's tokens, scores and types are not one of each", name);
  const char *at = texts->at;
  for (uint64_t i = 0; i < texts->count; i++) {
    size_t size;
    uint32_t score, kind;
    const char *text = ch_gguf_next_text(&at, &size);
    memcpy(&score, scores->at + i * sizeof score, sizeof score);
    memcpy(&kind, kinds->at + i * sizeof kind, sizeof kind);
    kind = le32toh(kind);
    put_piece(model, text, size, score, kind >= 1 && kind <= 6 ? kind : 1);
  }
  put_specs(model, in, texts->count);
  return model->data ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for its tokenizer", name);
}
