/* tokenizer.json with byte-level BPE as a tokenizer. */
#ifndef CH_DATA_BPE_READ_H
#define CH_DATA_BPE_READ_H

#include "base/buffer.h"
#include "data/encoder.h"
#include "data/tokenizer_json.h"

/* Nonzero: it is of byte-level BPE. */
int ch_bpe_is(const json_t *root);

/* Fills a tokenizer whose bytes are such a file, and `root` what they say; `name` starts messages.
 * CHOIR_ERROR_UNSUPPORTED names the field that would give other tokens and its value; CHOIR_ERROR_FORMAT,
 * CHOIR_ERROR_MEMORY. */
int ch_bpe_read(choir_tokenizer *tokenizer, const json_t *root, const char *name);

/* Writes the bytes that the characters of a token's text stand for, at most token->size; returns how many. 0: an added
 * token, or one with another character: it stands for its text itself. */
size_t ch_bpe_spell(const ch_json_token *token, char *out);

/* Writes a token for people, and a NUL: bytes that are no character of UTF-8 as <0xE2>. At most 6 bytes for each;
 * returns the length. */
size_t ch_bpe_name(ch_surface surface, char *out);

/* Appends the file with a note of which token ends a text and how many tokens the model has, which may be more than the
 * file's. eos below 0 and tokens 0: no note. */
int ch_bpe_note(const char *bytes, size_t size, int64_t eos, int64_t tokens, ch_buffer *out);

/* Appends the file as it was before ch_bpe_note. */
int ch_bpe_plain(const char *bytes, size_t size, ch_buffer *out);

#endif
