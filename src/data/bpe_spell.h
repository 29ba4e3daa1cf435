/* The bytes of a token of byte-level BPE, from its text in a tokenizer.json. */
#ifndef CH_DATA_BPE_SPELL_H
#define CH_DATA_BPE_SPELL_H

#include "data/encoder.h"
#include "data/tokenizer_json.h"

/* Writes the bytes that the characters of the text stand for; of an added token, or one with another character, the
 * text itself. At most token->size of them; returns how many. */
size_t ch_bpe_spell(const ch_json_token *token, char *out);

/* Writes a token for people, and a NUL: bytes that are no character of UTF-8 as <0xE2>. At most 6 bytes for each;
 * returns the length. */
size_t ch_bpe_name(ch_surface surface, char *out);

#endif
