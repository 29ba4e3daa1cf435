#include "data/shard.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/encoder.h"
#include "file/path_status.h"

enum { VERSION = 1 };
static const char MAGIC[] = "choirshd";

/* The header of a file; little-endian, like the tokens after it. */
typedef struct {
  char magic[8];
  uint32_t version, width; /* width: bytes per token */
  uint64_t vocab, tokenizer, tokens, documents, text, checksum, zero[7], header_checksum;
} shard_header;
enum { HEADER_BYTES = 128, CHECKED_BYTES = offsetof(shard_header, header_checksum) };
_Static_assert(sizeof(shard_header) == HEADER_BYTES, "docs/data.md has the layout");

static int width_of(int vocab) { return vocab <= 1 << 16 ? 2 : 4; }

static shard_header make_header(const ch_shard_info *info, int width) {
  shard_header h = {.version = htole32(VERSION),
                    .width = htole32((uint32_t)width),
                    .vocab = htole64((uint64_t)info->vocab_size),
                    .tokenizer = htole64(info->tokenizer_hash),
                    .tokens = htole64(info->tokens),
                    .documents = htole64(info->documents),
                    .text = htole64(info->text_bytes),
                    .checksum = htole64(info->checksum)};
  memcpy(h.magic, MAGIC, sizeof h.magic);
  h.header_checksum = htole64(XXH64(&h, CHECKED_BYTES, 0));
  return h;
}

/* Reads and checks the header of a file with `bytes` bytes. */
static int get_header(const shard_header *h, size_t bytes, ch_shard *s) {
  if (bytes < HEADER_BYTES)
    return ch_error(CHOIR_ERROR_FORMAT, "%zu bytes: shorter than a shard's header; it is truncated or no shard", bytes);
  if (memcmp(h->magic, MAGIC, sizeof h->magic)) return ch_error(CHOIR_ERROR_FORMAT, "not a choir shard");
  if (le64toh(h->header_checksum) != XXH64(h, CHECKED_BYTES, 0))
    return ch_error(CHOIR_ERROR_FORMAT, "the header is damaged (checksum); build the data again");
  uint32_t version = le32toh(h->version);
  uint64_t vocab = le64toh(h->vocab);
  if (version != VERSION)
    return ch_error(CHOIR_ERROR_FORMAT, "version %" PRIu32 "; this choir reads version %d", version, VERSION);
  if (vocab < 1 || vocab > CH_VOCAB_LIMIT)
    return ch_error(CHOIR_ERROR_FORMAT, "vocabulary of %" PRIu64 "; must be 1 to %d", vocab, CH_VOCAB_LIMIT);
  s->width = (int)le32toh(h->width);
  s->info = (ch_shard_info){.vocab_size = (int)vocab,
                            .tokenizer_hash = le64toh(h->tokenizer),
                            .tokens = le64toh(h->tokens),
                            .documents = le64toh(h->documents),
                            .text_bytes = le64toh(h->text),
                            .checksum = le64toh(h->checksum)};
  if (s->width != width_of(s->info.vocab_size))
    return ch_error(CHOIR_ERROR_FORMAT, "%d bytes a token; a vocabulary of %d has %d", s->width, s->info.vocab_size,
                    width_of(s->info.vocab_size));
  for (size_t i = offsetof(shard_header, zero); i < CHECKED_BYTES; i++)
    if (((const char *)h)[i]) return ch_error(CHOIR_ERROR_FORMAT, "header byte %zu is not zero", i);
  uint64_t payload = bytes - HEADER_BYTES;
  if (payload % (uint64_t)s->width || s->info.tokens != payload / (uint64_t)s->width)
    return ch_error(CHOIR_ERROR_FORMAT,
                    "holds %" PRIu64 " tokens by its header, but %" PRIu64
                    " bytes of them; truncated? build the data again",
                    s->info.tokens, payload);
  if (s->info.documents > s->info.tokens)
    return ch_error(CHOIR_ERROR_FORMAT, "%" PRIu64 " documents in %" PRIu64 " tokens", s->info.documents,
                    s->info.tokens);
  return CHOIR_OK;
}

static uint32_t largest16(const uint16_t *tokens, size_t count) {
  uint16_t max = 0;
  for (size_t i = 0; i < count; i++) max = tokens[i] > max ? tokens[i] : max;
  return max;
}

static uint32_t largest32(const uint32_t *tokens, size_t count) {
  uint32_t max = 0;
  for (size_t i = 0; i < count; i++) max = tokens[i] > max ? tokens[i] : max;
  return max;
}

/* One pass over the tokens, in chunks, so that the checksum and the range check of a chunk read it from the cache. */
static int check_tokens(const ch_shard *s) {
  const size_t piece = (size_t)1 << 18;
  const char *tokens = (const char *)s->map + HEADER_BYTES;
  size_t bytes = s->map_bytes - HEADER_BYTES;
  uint32_t max = 0;
  XXH64_state_t hash;
  XXH64_reset(&hash, 0);
  for (size_t at = 0; at < bytes; at += piece) {
    size_t size = bytes - at < piece ? bytes - at : piece;
    XXH64_update(&hash, tokens + at, size);
    uint32_t here = s->width == 2 ? largest16((const uint16_t *)(const void *)(tokens + at), size / 2)
                                  : largest32((const uint32_t *)(const void *)(tokens + at), size / 4);
    max = here > max ? here : max;
  }
  if (XXH64_digest(&hash) != s->info.checksum)
    return ch_error(CHOIR_ERROR_FORMAT, "the tokens are damaged (checksum); build the data again");
  if (s->info.tokens && max >= (uint32_t)s->info.vocab_size)
    return ch_error(CHOIR_ERROR_FORMAT, "holds token %u; the vocabulary has %d", max, s->info.vocab_size);
  return CHOIR_OK;
}

struct ch_shard_origin {
  struct stat status;
  atomic_int unfit;
  char path[];
};

static int note_origin(const char *path, ch_shard *s) {
  s->origin = calloc(1, sizeof *s->origin + strlen(path) + 1);
  if (!s->origin) return ch_error(CHOIR_ERROR_MEMORY, "not enough memory to open it");
  strcpy(s->origin->path, path);
  return stat(path, &s->origin->status) ? ch_error_errno("cannot read the time of the last change") : CHOIR_OK;
}

static int was_changed(const ch_shard *s) {
  return ch_error(CHOIR_ERROR_FORMAT, "%s: was changed while it was read; copy new data to a new directory",
                  s->origin->path);
}

int ch_shard_intact(const ch_shard *s) {
  struct stat now;
  const struct stat *then = &s->origin->status;
  if (atomic_load_explicit(&s->origin->unfit, memory_order_relaxed)) return was_changed(s);
  if (stat(s->origin->path, &now))
    return ch_is_absent(errno) ? CHOIR_OK : ch_error_errno("%s: cannot check for changes of the file", s->origin->path);
  if (now.st_dev != then->st_dev || now.st_ino != then->st_ino) return CHOIR_OK;
  return now.st_size == then->st_size && now.st_mtim.tv_sec == then->st_mtim.tv_sec &&
                 now.st_mtim.tv_nsec == then->st_mtim.tv_nsec
             ? CHOIR_OK
             : was_changed(s);
}

int ch_shard_open(const char *path, ch_shard *s) {
  *s = (ch_shard){0};
  CH_TRY(ch_file_map(path, &s->map, &s->map_bytes));
  int code = note_origin(path, s);
  if (!code) code = get_header(s->map, s->map_bytes, s);
  if (!code) code = check_tokens(s);
  if (!code) return CHOIR_OK;
  ch_shard_close(s);
  return ch_error_in(code, "%s", path);
}

void ch_shard_close(ch_shard *s) {
  if (s->map) ch_file_unmap(s->map, s->map_bytes);
  s->map = NULL;
  free(s->origin);
  s->origin = NULL;
}

void ch_shard_read(const ch_shard *s, uint64_t first, size_t count, int32_t *tokens) {
  const char *from = (const char *)s->map + HEADER_BYTES + first * (uint64_t)s->width;
  const uint16_t *narrow = (const void *)from;
  const uint32_t *wide = (const void *)from;
  const uint32_t vocabulary = (uint32_t)s->info.vocab_size;
  uint32_t max = 0;
  for (size_t i = 0; i < count; i++) {
    const uint32_t id = s->width == 2 ? narrow[i] : wide[i];
    tokens[i] = id < vocabulary ? (int32_t)id : 0;
    max = id > max ? id : max;
  }
  if (max >= vocabulary) atomic_store_explicit(&s->origin->unfit, 1, memory_order_relaxed);
}

int ch_shard_begin(ch_shard_writer *w, const char *path, int vocab_size, uint64_t tokenizer_hash) {
  static const char zeros[HEADER_BYTES];
  *w = (ch_shard_writer){.info = {.vocab_size = vocab_size, .tokenizer_hash = tokenizer_hash},
                         .width = width_of(vocab_size)};
  XXH64_reset(&w->hash, 0);
  CH_TRY(ch_file_begin(&w->file, path));
  ch_file_write(&w->file, zeros, HEADER_BYTES); /* the real header is written last */
  return CHOIR_OK;
}

int ch_shard_write(ch_shard_writer *w, const int32_t *tokens, size_t count) {
  enum { PIECE = 8192 };
  unsigned char bytes[PIECE * 4];
  while (count) {
    size_t n = count < PIECE ? count : PIECE;
    for (size_t i = 0; i < n; i++) {
      if (tokens[i] < 0 || tokens[i] >= w->info.vocab_size)
        return ch_error(CHOIR_ERROR_FORMAT, "%s: token %d of a vocabulary of %d", w->file.path, tokens[i],
                        w->info.vocab_size);
      const uint32_t token = htole32((uint32_t)tokens[i]);
      memcpy(bytes + i * (size_t)w->width, &token, (size_t)w->width);
    }
    XXH64_update(&w->hash, bytes, n * (size_t)w->width);
    ch_file_write(&w->file, bytes, n * (size_t)w->width);
    w->info.tokens += n;
    tokens += n, count -= n;
  }
  return CHOIR_OK;
}

int ch_shard_commit(ch_shard_writer *w) {
  w->info.checksum = XXH64_digest(&w->hash);
  const shard_header h = make_header(&w->info, w->width);
  ch_file_rewrite(&w->file, 0, &h, sizeof h);
  return ch_file_commit(&w->file);
}
