/* Byte-level BPE, as Hugging Face's tokenizers implements it for GPT-2, OLMoE, Qwen, Llama 3, GLM-4 and DeepSeek: a
 * text is split at added tokens, normalized, and split into words by regular expressions; within the bytes of a word,
 * the pair with the lowest rank is merged first (Sennrich et al. 2016; Radford et al. 2019). */
#ifndef CH_DATA_BPE_H
#define CH_DATA_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "data/words.h"

/* The bytes that a token encodes. */
typedef struct ch_surface {
  const char *text;
  size_t size;
} ch_surface;

/* An entry of the merge table: the pair of tokens, the rank of the merge and the resulting token. */
typedef struct ch_merge {
  int32_t left, right, rank, made; /* made -1: empty */
} ch_merge;

typedef struct ch_bpe {
  ch_words words;
  ch_merge *merge; /* [1 << merge_bits] */
  int merge_bits;
  int32_t *whole; /* [1 << whole_bits] tokens by their bytes, -1: empty; NULL: words that are tokens are still merged */
  int whole_bits;
  int32_t byte_id[256];
  const ch_surface *surface; /* owned by the tokenizer */
} ch_bpe;

/* Allocates tables for so many merges and tokens by their bytes (0: none), which are added afterwards.
 * CHOIR_ERROR_MEMORY. */
int ch_bpe_begin(ch_bpe *bpe, size_t merges, size_t wholes);
int ch_bpe_add_merge(ch_bpe *bpe, ch_merge merge); /* 0: the pair already has a merge */
void ch_bpe_add_whole(ch_bpe *bpe, int32_t id);
void ch_bpe_free(ch_bpe *bpe);

/* Writes the tokens of a word to ids [size]. Time grows as size log size. */
int ch_bpe_encode(const ch_bpe *bpe, const char *word, size_t size, int32_t *ids, size_t *count);

#endif
