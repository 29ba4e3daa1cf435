/* C interface to SentencePiece (spm.cc, spm_train.cc), which is C++. No exception leaves it, nothing is printed. */
#ifndef CH_DATA_SPM_H
#define CH_DATA_SPM_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

CHOIR_C_BEGIN

typedef struct ch_spm ch_spm;

int ch_spm_load(const void *bytes, size_t size, ch_spm **spm);
void ch_spm_free(ch_spm *spm);

typedef enum { CH_PIECE_NORMAL, CH_PIECE_BYTE, CH_PIECE_CONTROL, CH_PIECE_UNKNOWN, CH_PIECE_UNUSED } ch_piece_kind;

int ch_spm_vocab(const ch_spm *spm);
int ch_spm_eos(const ch_spm *spm);                                 /* -1: none */
const char *ch_spm_piece(const ch_spm *spm, int id, size_t *size); /* U+2581 stands for a space; owned by spm */
ch_piece_kind ch_spm_kind(const ch_spm *spm, int id);
float ch_spm_score(const ch_spm *spm, int id); /* BPE: minus the rank of its merge */

/* Encodes text into ids [capacity]. *count: number of tokens, which is larger than capacity if they did not fit.
 * Thread-safe. */
int ch_spm_encode(const ch_spm *spm, const char *text, size_t size, int32_t *ids, size_t capacity, size_t *count);

typedef struct ch_spm_training {
  const char *type; /* as in choir_tokenizer_train_options */
  int vocab_size;
  int pieces;     /* number of partial sums in the expectation step: a constant, so that the result does not depend on
                     threads */
  size_t longest; /* length of the longest sentence in bytes */
  const char *const *sentences;
  const size_t *sizes;
  size_t count;
  int few_spaces; /* spaces are so rare that they might get no piece and would then look like U+2581; at least one
                     exists */
} ch_spm_training;

/* Trains a model with byte fallback and no normalization; *model is malloc'd. */
int ch_spm_train(const ch_spm_training *training, void **model, size_t *size);

/* ---- properties that the library does not expose: read from the bytes of a model (spm_spec.c) ---- */

/* Checks that decoding restores every encoded text if spaces are kept: no normalization map, spaces at the
 * beginnings of words, byte fallback. CHOIR_ERROR_FORMAT, naming field and value, or because the file is not a model.
 * */
int ch_spm_spec_check(const void *bytes, size_t size);

/* The algorithm of a model that passed the check. */
typedef enum { CH_SPM_UNIGRAM = 1, CH_SPM_BPE = 2, CH_SPM_CHAR = 4 } ch_spm_type;
ch_spm_type ch_spm_spec_type(const void *bytes, size_t size);

/* Nonzero: SentencePiece itself inserts a space at the beginning of a text (add_dummy_prefix). choir does not. */
int ch_spm_spec_adds_space(const void *bytes, size_t size);

/* A copy [*kept] of a model that passed, changed to preserve spaces: none is inserted at the beginning
 * (add_dummy_prefix) and none removed (remove_extra_whitespaces), because both change text. A repeated message is
 * merged, so settings at the end take precedence. NULL: no memory. */
void *ch_spm_spec_keep_spaces(const void *bytes, size_t size, size_t *kept);

CHOIR_C_END

#endif
