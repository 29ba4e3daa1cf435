/* Writes the file of a SentencePiece model, a protocol buffer. */
#ifndef CH_EXPORT_SPM_WRITE_H
#define CH_EXPORT_SPM_WRITE_H

#include <stdint.h>

#include "base/buffer.h"

/* SentencePiece's types of pieces; GGUF uses the same numbers. */
enum { CH_SPM_NORMAL = 1, CH_SPM_UNKNOWN, CH_SPM_CONTROL, CH_SPM_USER, CH_SPM_UNUSED, CH_SPM_BYTE };

/* The special pieces of a model file, in this order: unknown, beginning, end and padding. */
enum { CH_SPM_UNK, CH_SPM_BOS, CH_SPM_EOS, CH_SPM_PAD, CH_SPM_SPECIALS };
typedef struct ch_spm_special {
  int64_t id; /* -1: none */
  const char *text;
  size_t size;
} ch_spm_special;

/* Adds the next piece. */
void ch_spm_put_piece(ch_buffer *model, const char *text, size_t size, float score, int kind);

/* Adds the settings of BPE with byte fallback, after all pieces. `prefix`: SentencePiece inserts a space at the
 * beginning of texts. */
void ch_spm_put_settings(ch_buffer *model, int64_t pieces, const ch_spm_special special[CH_SPM_SPECIALS], int prefix);

#endif
