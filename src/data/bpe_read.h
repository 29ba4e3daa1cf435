/* Reads a tokenizer.json with byte-level BPE. */
#ifndef CH_DATA_BPE_READ_H
#define CH_DATA_BPE_READ_H

#include "base/buffer.h"
#include "data/encoder.h"
#include "data/tokenizer_json.h"

/* Nonzero: the file is of byte-level BPE. */
int ch_bpe_is(const json_t *root);

/* Fills a tokenizer from the parsed file `root`, whose bytes the tokenizer already has; messages start with `name`.
 * CHOIR_ERROR_UNSUPPORTED names a field whose value would give other tokens; CHOIR_ERROR_FORMAT, CHOIR_ERROR_MEMORY. */
int ch_bpe_read(choir_tokenizer *tokenizer, const json_t *root, const char *name);

/* Writes the bytes that a token's text encodes in the byte alphabet, at most token->size; returns their number. 0:
 * an added token, or a text with a character outside the alphabet, which is used literally. */
size_t ch_bpe_spell(const ch_json_token *token, char *out);

/* Writes a readable name of a token, and a NUL: bytes that are not UTF-8 as <0xE2>, so at most 6 bytes for each;
 * returns the length. */
size_t ch_bpe_name(ch_surface surface, char *out);

/* Appends the file with a note of the token that ends a text and of the model's number of tokens, which may be
 * larger than the file's. eos below 0 and tokens 0: no note. */
int ch_bpe_note(const char *bytes, size_t size, int64_t eos, int64_t tokens, ch_buffer *out);

/* Appends the file without the note. */
int ch_bpe_plain(const char *bytes, size_t size, ch_buffer *out);

#endif
