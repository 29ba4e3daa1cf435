/* What a SentencePiece model's file says about changing text, read from its bytes: the library does not tell. */
#ifndef CH_DATA_SPM_SPEC_H
#define CH_DATA_SPM_SPEC_H

#include <stddef.h>

#include "base/error.h"

/* CHOIR_ERROR_FORMAT, naming the setting, or because this is no such file, unless decoding what was encoded gives back
 * every text: no normalization map, no space put in front, none removed, spaces as spaces, bytes for what has no piece.
 */
int ch_spm_spec_check(const void *bytes, size_t size);

#endif
