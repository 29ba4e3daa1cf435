/* An opened data directory, and the file that describes it. */
#ifndef CH_DATA_DATA_H
#define CH_DATA_DATA_H

#include <jansson.h>

#include "choir/data.h"
#include "data/shard.h"

enum { CH_SOURCE_LIMIT = 1024, CH_SOURCE_NAME_BYTES = 65 };

typedef struct ch_source {
  char name[CH_SOURCE_NAME_BYTES];
  double weight;  /* > 0, relative */
  uint64_t begin; /* its part of [0, 2^32) in the mixture; the next source's begin ends it */
  ch_shard train, heldout;
} ch_source;

struct choir_data {
  char *tokenizer_path;
  int vocab_size, count;
  ch_source *sources; /* [count + 1]; the last one only ends the mixture */
  uint64_t tokenizer_hash, hash;
};

/* The source that training sample number `sample` comes from; *before: how many earlier samples come from it. */
int ch_data_sample_source(const choir_data *data, uint64_t seed, uint64_t sample, uint64_t *before);

/* Letters, digits, '-' and '_', at most 64. */
int ch_source_name_check(const char *name);

/* The entry of a shard in data.json. */
json_t *ch_shard_describe(const ch_shard_info *info);

/* 64 bits as hexadecimal digits, which JSON's numbers cannot hold. text: 17 bytes. Returns text. */
const char *ch_hex(uint64_t value, char *text);

#endif
