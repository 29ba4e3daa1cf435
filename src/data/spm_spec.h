/* Reads from the bytes of a SentencePiece model whether it changes text: the library does not tell. */
#ifndef CH_DATA_SPM_SPEC_H
#define CH_DATA_SPM_SPEC_H

#include <stddef.h>

#include "base/error.h"

/* CHOIR_ERROR_FORMAT, naming field and value, or because this is no such file, unless decoding what was encoded gives
 * back every text once spaces are kept: no map, spaces as the beginnings of words, bytes for what has no piece. */
int ch_spm_spec_check(const void *bytes, size_t size);

/* How a model that passed finds its pieces. */
typedef enum { CH_SPM_UNIGRAM = 1, CH_SPM_BPE = 2, CH_SPM_CHAR = 4 } ch_spm_type;
ch_spm_type ch_spm_spec_type(const void *bytes, size_t size);

/* A copy [*kept] of a model that passed, which keeps spaces: none is put in front (add_dummy_prefix) and none removed
 * (remove_extra_whitespaces), for both change text. A message that comes twice is merged, so that settings at the end
 * rule. NULL: no memory. */
void *ch_spm_spec_keep_spaces(const void *bytes, size_t size, size_t *kept);

#endif
