/* Tokenizes text into shards, and opens the result. */
#ifndef CHOIR_DATA_H
#define CHOIR_DATA_H

#include "choir/event.h"
#include "choir/tokenizer.h"

CHOIR_C_BEGIN

/* One source of a data mixture (a row of the data table in the GLaM paper). */
typedef struct choir_data_source {
  const char *name;          /* "wikipedia"; letters, digits, '-', '_' */
  const char *const *inputs; /* files; plain text or JSON lines, plain or gz, xz, zst, bz2; NULL-terminated */
  double weight; /* relative share of training samples; 0 for all sources: proportional to their numbers of tokens */
  int64_t reserved[4];
} choir_data_source;

typedef struct choir_data_build_options {
  size_t size; /* sizeof this struct: set by INIT */
  const choir_data_source *sources;
  int source_count;
  const char *tokenizer; /* a file or directory for choir_tokenizer_load */
  const char *output;    /* directory; must be new or empty */
  const char *field;     /* JSON lines: the field that holds the text; NULL: plain text */
  const char *separator; /* plain text: the line between documents, e.g. "\f"; NULL: a file is one document */
  double
      holdout; /* share of documents (or of blocks, if a source has too few documents) held out for evaluation; 0.01 */
  uint64_t seed;       /* chooses the held-out documents */
  int threads;         /* threads for tokenization; 0: all CPUs */
  int replace_invalid; /* replace each byte that is not UTF-8 by U+FFFD, and count them; 0: such a byte is an error */
  choir_progress_callback progress; /* or NULL; in bytes */
  void *context;
} choir_data_build_options;
#define CHOIR_DATA_BUILD_OPTIONS_INIT \
  { .size = sizeof(choir_data_build_options), .holdout = 0.01 }
CHOIR_API void choir_data_build_options_default(choir_data_build_options *options,
                                                size_t size); /* the same, as a function */

/* Tokenizes all sources into `output`: data.json (sources, weights, counts), tokenizer.model, and per source
 * NAME.train.shard and NAME.heldout.shard; on an error nothing is written. The input is streamed: memory does not grow
 * with it. The result does not depend on threads. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT (file, line
 * and byte), CHOIR_ERROR_INTERRUPTED. */
CHOIR_API int choir_data_build(const choir_data_build_options *options);

typedef struct choir_data choir_data;

/* Opens a built directory: checks headers, sizes, vocabulary hash against tokenizer.model, and checksums.
 * CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT. */
CHOIR_API int choir_data_load(const char *directory, choir_data **data);
CHOIR_API void choir_data_free(choir_data *data);

typedef struct choir_data_info {
  int vocab_size, sources;
  uint64_t train_tokens, heldout_tokens; /* end-of-text tokens included */
  uint64_t train_bytes, heldout_bytes;   /* of text */
  uint64_t documents; /* not empty; a document in both the training and the held-out share counts once */
  uint64_t hash;      /* of the whole data set, as recorded in checkpoints and timing.jsonl */
  int64_t reserved[7];
} choir_data_info;
CHOIR_API int choir_data_get_info(const choir_data *data, choir_data_info *info);

CHOIR_C_END
#endif
