/* Windows of tokens from a built data directory, for training and evaluation. */
#ifndef CH_DATA_READER_H
#define CH_DATA_READER_H

#include "choir/data.h"

/* The whole state of sampling: everything else is a function of (seed, this). Saved in checkpoints. */
typedef struct ch_data_position {
  uint64_t samples; /* training windows handed out so far, all sources */
} ch_data_position;

/* Fills tokens [count, length+1] with the next `count` training windows and moves the position. Source and window are
 * functions of (seed, sample number): sources by weight, windows of each source in a fresh shuffled order every epoch.
 * Windows of a source are disjoint but for the one token of overlap. Cannot fail once checked. */
int ch_data_check(const choir_data *data, int length); /* every source has a window of length+1; says which has not */
void ch_data_next(const choir_data *data, uint64_t seed, int length, ch_data_position *position, int count,
                  int32_t *tokens);

/* Held-out windows of length+1, all sources in order; window 0 <= index < count. The last, shorter one of each source
 * is padded with -1. */
int64_t ch_data_heldout_windows(const choir_data *data, int length);
void ch_data_heldout(const choir_data *data, int length, int64_t index, int32_t *tokens);
/* The source of a held-out window; *index becomes its number within the source. */
int ch_data_heldout_source(const choir_data *data, int length, int64_t *index);
int ch_data_sources(const choir_data *data);
const char *ch_data_source_name(const choir_data *data, int source);

/* Counts of each token id in the training shards [vocab]: the unigram baseline. */
void ch_data_unigram(const choir_data *data, uint64_t *counts);

size_t ch_data_mapped_bytes(const choir_data *data); /* of all files of tokens */
uint64_t ch_data_hash(const choir_data *data); /* of the directory's content: a run is resumed on the same data only */
uint64_t ch_data_tokenizer_hash(const choir_data *data);
const char *ch_data_tokenizer_path(const choir_data *data);

#endif
