/* Shards: the tokens of one share of one source, in one checked, memory-mapped file. docs/data.md has the layout. */
#ifndef CH_DATA_SHARD_H
#define CH_DATA_SHARD_H

#include "base/hash.h"
#include "file/file.h"

typedef struct ch_shard_info {
  int vocab_size;
  uint64_t tokenizer_hash;
  uint64_t tokens, documents, text_bytes;
  uint64_t checksum; /* of the tokens as stored */
} ch_shard_info;

/* Identity, length and time of the shard's file at opening, and whether a token beyond the vocabulary was read since.
 */
typedef struct ch_shard_origin ch_shard_origin;

typedef struct ch_shard {
  ch_shard_info info;
  int width; /* bytes a token */
  const void *map;
  size_t map_bytes;
  ch_shard_origin *origin;
} ch_shard;

/* Opens and checks everything: header, file size, checksums, every token below vocab_size. CHOIR_ERROR_IO,
 * CHOIR_ERROR_FORMAT. */
int ch_shard_open(const char *path, ch_shard *shard);
void ch_shard_close(ch_shard *shard);

/* CHOIR_ERROR_FORMAT: somebody has written into the file since it was opened, by its size and time, or because it
 * holds a token outside the vocabulary. A shard whose name another file has taken (a rename) keeps its own bytes.
 * CHOIR_ERROR_IO. */
int ch_shard_intact(const ch_shard *shard);

/* Tokens first .. first+count-1; those beyond the vocabulary are read as 0, and ch_shard_intact tells. */
void ch_shard_read(const ch_shard *shard, uint64_t first, size_t count, int32_t *tokens);

typedef struct ch_shard_writer {
  ch_file file;
  ch_shard_info info;
  int width;
  XXH64_state_t hash;
} ch_shard_writer;

int ch_shard_begin(ch_shard_writer *writer, const char *path, int vocab_size, uint64_t tokenizer_hash);
/* Appends tokens. A write that fails is kept in writer->file, and ch_shard_commit returns it. CHOIR_ERROR_FORMAT: a
 * token outside the vocabulary. A caller that gives up calls ch_file_abandon. */
int ch_shard_write(ch_shard_writer *writer, const int32_t *tokens, size_t count);
int ch_shard_commit(ch_shard_writer *writer);

#endif
