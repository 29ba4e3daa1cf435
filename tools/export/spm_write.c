#include "export/spm_write.h"

#include <endian.h>
#include <string.h>

/* Protocol buffers store a number in groups of seven bits, and before a field its number and type. */
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

void ch_spm_put_piece(ch_buffer *model, const char *text, size_t size, float score, int kind) {
  ch_buffer piece = {0};
  uint32_t bits;
  memcpy(&bits, &score, sizeof bits);
  bits = htole32(bits);
  put_bytes(&piece, 1, text, size);
  put_tag(&piece, 2, FIXED32);
  ch_buffer_append(&piece, &bits, sizeof bits);
  put_flag(&piece, 3, (uint64_t)kind);
  put_bytes(model, 1, piece.data, piece.size);
  free(piece.data);
}

void ch_spm_put_settings(ch_buffer *model, int64_t pieces, const ch_spm_special special[CH_SPM_SPECIALS], int prefix) {
  enum { MODEL_TYPE = 3, VOCAB_SIZE = 4, BYTE_FALLBACK = 35, IDS = 40, TEXTS = 45, BPE = 2 };
  ch_buffer trainer = {0}, normalizer = {0};
  put_flag(&trainer, MODEL_TYPE, BPE);
  put_flag(&trainer, VOCAB_SIZE, (uint64_t)pieces);
  put_flag(&trainer, BYTE_FALLBACK, 1);
  for (int i = 0; i < CH_SPM_SPECIALS; i++) {
    put_flag(&trainer, IDS + i, (uint64_t)special[i].id);
    if (special[i].id >= 0) put_bytes(&trainer, TEXTS + i, special[i].text, special[i].size);
  }
  put_bytes(model, 2, trainer.data, trainer.size);
  put_bytes(&normalizer, 1, "identity", strlen("identity"));
  put_flag(&normalizer, 3, (uint64_t)prefix); /* add_dummy_prefix */
  put_flag(&normalizer, 4, 0);                /* remove_extra_whitespaces */
  put_flag(&normalizer, 5, 1);                /* escape_whitespaces */
  put_bytes(model, 3, normalizer.data, normalizer.size);
  free(trainer.data);
  free(normalizer.data);
}
