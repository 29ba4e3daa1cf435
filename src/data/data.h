/* An opened data directory, and the file that describes it. */
#ifndef CH_DATA_DATA_H
#define CH_DATA_DATA_H

#include <jansson.h>

#include "choir/data.h"
#include "data/shard.h"

enum { CH_SOURCE_LIMIT = 1024, CH_SOURCE_NAME_BYTES = 65 };

typedef struct ch_source {
  char name[CH_SOURCE_NAME_BYTES];
  double weight; /* > 0, relative */
  uint64_t documents;
  uint64_t begin; /* begin of its interval of [0, 2^32) in the mixture; the next source's begin ends it */
  ch_shard train, heldout;
} ch_source;

struct choir_data {
  char *tokenizer_path;
  int vocab_size, count;
  ch_source *sources; /* [count + 1]; the last entry only ends the mixture */
  uint64_t tokenizer_hash;
  uint64_t hash; /* hash of the directory's content: a run is resumed on the same data only */
};

/* The source of training sample number `sample`; *before: how many earlier samples come from it. */
int ch_data_sample_source(const choir_data *data, uint64_t seed, uint64_t sample, uint64_t *before);

/* A name has letters, digits, '-' and '_', at most 64. */
int ch_source_name_check(const char *name);

/* The entry of a shard in data.json. */
json_t *ch_shard_describe(const ch_shard_info *info);

/* ---- windows of tokens from a built data directory, for training and evaluation ---- */

/* The whole state of sampling: everything else is a function of it and the seed. Saved in checkpoints. */
typedef struct ch_data_position {
  uint64_t samples; /* training windows handed out so far, all sources */
} ch_data_position;

/* ch_data_next fills tokens [count, length+1] with the next `count` training windows and advances the position.
 * Source and window are functions of (seed, sample number): sources are sampled by weight, windows of each source in a
 * newly shuffled order every epoch. Windows of a source overlap in one token. Cannot fail after ch_data_check. */
int ch_data_check(const choir_data *data,
                  int length); /* checks that every source has a window of length+1; the error names one without */
void ch_data_next(const choir_data *data, uint64_t seed, int length, ch_data_position *position, int count,
                  int32_t *tokens);

/* Whether all shard files are unchanged since they were opened (ch_shard_intact): checked at every step, because a
 * mapped file shows what others write into it. */
int ch_data_intact(const choir_data *data);

/* Held-out windows of length+1, all sources in order; window 0 <= index < count. The last, shorter one of each source
 * is padded with -1. */
int64_t ch_data_heldout_windows(const choir_data *data, int length);
void ch_data_heldout(const choir_data *data, int length, int64_t index, int32_t *tokens);
/* The source of a held-out window; *index becomes its number within the source. */
int ch_data_heldout_source(const choir_data *data, int length, int64_t *index);

/* Counts each token id in the training shards: counts [vocab], for the unigram baseline. */
void ch_data_unigram(const choir_data *data, uint64_t *counts);

size_t ch_data_mapped_bytes(const choir_data *data); /* bytes of all mapped shard files */

/* CHOIR_ERROR_ARGUMENT, naming option or source and value; CHOIR_ERROR_IO: the output is there and not empty. */
int ch_build_check(const choir_data_build_options *options);

/* Emits a notice if an input is given twice, under whatever names: a file, and a directory that contains it. */
int ch_build_note_duplicates(const choir_data_build_options *options);

#endif
