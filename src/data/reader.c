#include <inttypes.h>
#include <string.h>

#include "base/rng.h"
#include "data/data.h"

/* The mixture. Sample s belongs to the source whose interval of [0, 2^32) contains (a s + b) mod 2^32. Multiples of
 * the golden ratio modulo one are spread as evenly as points on a circle can be, so every range of samples has its
 * sources in proportion to within a few samples; a is odd, so over 2^32 samples the proportions are exact; and the
 * number of the first s samples that belong to a source is a sum that can be computed without a loop over them. */
static const uint64_t STEP = UINT64_C(2654435769), CIRCLE = UINT64_C(1) << 32;

static uint64_t start_of(uint64_t seed) { return ch_rng_bits(ch_rng_make(seed, CH_STREAM_MIXTURE, 0), 0) % CIRCLE; }

/* Sum over 0 <= i < n of floor((a i + b) / m), modulo 2^64, as in Euclid's algorithm. n, m <= 2^32. */
static uint64_t floor_sum(uint64_t n, uint64_t m, uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  for (;;) {
    uint64_t pairs = n % 2 ? n * ((n - 1) / 2) : n / 2 * (n - 1);
    sum += pairs * (a / m) + n * (b / m);
    a %= m, b %= m;
    uint64_t top = a * n + b;
    if (top < m) return sum;
    n = top / m, b = top % m;
    uint64_t swap = m;
    m = a, a = swap;
  }
}

/* The number of the first n samples with (a s + b) mod 2^32 < bound. */
static uint64_t count_below(uint64_t n, uint64_t b, uint64_t bound) {
  uint64_t rounds = n / CIRCLE, rest = n % CIRCLE;
  return rounds * bound + rest + floor_sum(rest, CIRCLE, STEP, b) - floor_sum(rest, CIRCLE, STEP, b + CIRCLE - bound);
}

int ch_data_sample_source(const choir_data *d, uint64_t seed, uint64_t sample, uint64_t *before) {
  uint64_t b = start_of(seed), point = (sample % CIRCLE * STEP + b) % CIRCLE;
  int source = 0;
  while (d->sources[source + 1].begin <= point) source++;
  *before = count_below(sample, b, d->sources[source + 1].begin) - count_below(sample, b, d->sources[source].begin);
  return source;
}

static uint64_t windows_of(const ch_shard *shard, int length) {
  return shard->info.tokens ? (shard->info.tokens - 1) / (uint64_t)length : 0;
}

int ch_data_check(const choir_data *d, int length) {
  if (length < 1) return ch_error(CHOIR_ERROR_ARGUMENT, "sequence length is %d; must be 1 or more", length);
  for (int i = 0; i < d->count; i++)
    if (!windows_of(&d->sources[i].train, length))
      return ch_error(CHOIR_ERROR_ARGUMENT,
                      "source \"%s\" has %" PRIu64
                      " training tokens: too few for one sequence of %d + 1; give more text or a shorter sequence",
                      d->sources[i].name, d->sources[i].train.info.tokens, length);
  return CHOIR_OK;
}

/* Reads a training window. Every epoch of a source has its own order. */
static void read_window(const choir_data *d, uint64_t seed, int length, uint64_t sample, int32_t *tokens) {
  uint64_t before;
  int source = ch_data_sample_source(d, seed, sample, &before);
  const ch_shard *shard = &d->sources[source].train;
  uint64_t windows = windows_of(shard, length), epoch = before / windows;
  ch_rng order = ch_rng_make(seed, CH_STREAM_SHUFFLE, (uint32_t)source);
  order.seed =
      ch_rng_bits(order, UINT64_C(1) << 63 | epoch); /* an index that the order itself never uses with this seed */
  ch_shard_read(shard, ch_rng_permute(order, before % windows, windows) * (uint64_t)length, (size_t)length + 1, tokens);
}

void ch_data_next(const choir_data *d, uint64_t seed, int length, ch_data_position *position, int count,
                  int32_t *tokens) {
  for (int i = 0; i < count; i++)
    read_window(d, seed, length, position->samples++, tokens + (size_t)i * ((size_t)length + 1));
}

int ch_data_intact(const choir_data *d) {
  for (int i = 0; i < d->count; i++) {
    CH_TRY(ch_shard_intact(&d->sources[i].train));
    CH_TRY(ch_shard_intact(&d->sources[i].heldout));
  }
  return CHOIR_OK;
}

/* The last window of a source may be shorter, but has at least one target. */
static int64_t heldout_windows_of(const ch_source *s, int length) {
  uint64_t tokens = s->heldout.info.tokens;
  return tokens < 2 ? 0 : (int64_t)((tokens - 2) / (uint64_t)length + 1);
}

int64_t ch_data_heldout_windows(const choir_data *d, int length) {
  int64_t sum = 0;
  for (int i = 0; i < d->count; i++) sum += heldout_windows_of(&d->sources[i], length);
  return sum;
}

int ch_data_heldout_source(const choir_data *d, int length, int64_t *index) {
  int source = 0;
  for (int64_t count; *index >= (count = heldout_windows_of(&d->sources[source], length)); source++) *index -= count;
  return source;
}

void ch_data_heldout(const choir_data *d, int length, int64_t index, int32_t *tokens) {
  const ch_source *s = &d->sources[ch_data_heldout_source(d, length, &index)];
  uint64_t first = (uint64_t)index * (uint64_t)length, left = s->heldout.info.tokens - first;
  size_t size = (size_t)length + 1, count = left < size ? (size_t)left : size;
  ch_shard_read(&s->heldout, first, count, tokens);
  for (size_t i = count; i < size; i++) tokens[i] = -1;
}

void ch_data_unigram(const choir_data *d, uint64_t *counts) {
  enum { PIECE = 4096 };
  int32_t tokens[PIECE];
  memset(counts, 0, (size_t)d->vocab_size * sizeof *counts);
  for (int i = 0; i < d->count; i++) {
    const ch_shard *shard = &d->sources[i].train;
    for (uint64_t at = 0; at < shard->info.tokens; at += PIECE) {
      size_t n = shard->info.tokens - at < PIECE ? (size_t)(shard->info.tokens - at) : PIECE;
      ch_shard_read(shard, at, n, tokens);
      for (size_t k = 0; k < n; k++) counts[tokens[k]]++;
    }
  }
}

size_t ch_data_mapped_bytes(const choir_data *d) {
  size_t bytes = 0;
  for (int i = 0; i < d->count; i++) bytes += d->sources[i].train.map_bytes + d->sources[i].heldout.map_bytes;
  return bytes;
}
