/* Shards: the tokens of one split of one source, in one checked, memory-mapped file. docs/data.md has the layout. */
#ifndef CH_DATA_SHARD_H
#define CH_DATA_SHARD_H

#include "base/hash.h"
#include "file/file.h"

typedef struct ch_shard_info {
  int vocab_size;
  uint64_t tokenizer_hash;
  uint64_t tokens, documents, text_bytes;
  uint64_t checksum; /* checksum of the tokens as stored */
} ch_shard_info;

/* Identity, length and time of the shard's file at opening, and whether a token outside the vocabulary was read
 * since. */
typedef struct ch_shard_origin ch_shard_origin;

typedef struct ch_shard {
  ch_shard_info info;
  int width; /* bytes per token */
  const void *map;
  size_t map_bytes;
  ch_shard_origin *origin;
} ch_shard;

/* Opens and checks everything: header, file size, checksums, every token below vocab_size. CHOIR_ERROR_IO,
 * CHOIR_ERROR_FORMAT. */
int ch_shard_open(const char *path, ch_shard *shard);
void ch_shard_close(ch_shard *shard);

/* CHOIR_ERROR_FORMAT: the file was modified since it was opened, according to its size or time or a token outside
 * the vocabulary. A shard whose name was taken by another file (a rename) keeps its own bytes. CHOIR_ERROR_IO. */
int ch_shard_intact(const ch_shard *shard);

/* Reads tokens first .. first+count-1. Tokens outside the vocabulary are read as 0 and reported by ch_shard_intact. */
void ch_shard_read(const ch_shard *shard, uint64_t first, size_t count, int32_t *tokens);

typedef struct ch_shard_writer {
  ch_file file;
  ch_shard_info info;
  int width;
  XXH64_state_t hash;
} ch_shard_writer;

int ch_shard_begin(ch_shard_writer *writer, const char *path, int vocab_size, uint64_t tokenizer_hash);
/* Appends tokens. The error of a failed write is kept in writer->file and returned by ch_shard_commit.
 * CHOIR_ERROR_FORMAT: a token outside the vocabulary. To discard the shard, call ch_file_abandon. */
int ch_shard_write(ch_shard_writer *writer, const int32_t *tokens, size_t count);
int ch_shard_commit(ch_shard_writer *writer);

#endif
