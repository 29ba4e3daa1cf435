#include "task/sampler.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/rng.h"

enum { BATCHES_A_PIECE = 64 };

int ch_sampler_make(const ch_examples *e, uint64_t seed, int B, int micros, ch_sampler *s) {
  *s = (ch_sampler){.examples = e, .seed = seed, .B = B, .epoch = -1, .micros = micros};
  s->batches = (e->count + B - 1) / B;
  s->tokens = (int64_t)B * ch_padded_length(e->longest + e->longest_word - 1);
  s->rows = (int64_t)B * e->longest_word;
  s->batch = calloc((size_t)micros, sizeof *s->batch);
  s->order = reallocarray(NULL, (size_t)e->count, sizeof *s->order);
  s->token = reallocarray(NULL, (size_t)(micros * s->tokens), sizeof *s->token);
  s->row = reallocarray(NULL, 2 * (size_t)micros * (size_t)s->rows, sizeof *s->row);
  if (!s->batch || !s->order || !s->token || !s->row)
    return ch_error(CHOIR_ERROR_MEMORY, "no memory for batches of %lld tokens", (long long)s->tokens);
  s->target = s->row + micros * s->rows;
  return CHOIR_OK;
}

void ch_sampler_free(ch_sampler *s) {
  free(s->batch);
  free(s->order);
  free(s->token);
  free(s->row);
  *s = (ch_sampler){0};
}

/* The shorter first, and of equal length the one of the lower number: no two compare equal. */
static int by_length(const void *a, const void *b, void *examples) {
  int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
  int m = ch_examples_length(examples, i), n = ch_examples_length(examples, j);
  return m != n ? m - n : (i > j) - (i < j);
}

static void shuffle(ch_sampler *s, int64_t epoch) {
  const ch_examples *e = s->examples;
  int64_t piece = (int64_t)s->B * BATCHES_A_PIECE;
  ch_rng rng = ch_rng_make(s->seed, CH_STREAM_EXAMPLES, (uint32_t)(2 * epoch));
  for (int64_t i = 0; i < e->count; i++) s->order[i] = (int64_t)ch_rng_permute(rng, (uint64_t)i, (uint64_t)e->count);
  for (int64_t i = 0; i < e->count; i += piece)
    qsort_r(s->order + i, (size_t)(e->count - i < piece ? e->count - i : piece), sizeof *s->order, by_length,
            (void *)(uintptr_t)e);
  s->epoch = epoch;
}

int ch_sampler_get(ch_sampler *s, int64_t number, int micro, int64_t *used) {
  const ch_examples *e = s->examples;
  int64_t epoch = number / s->batches;
  if (epoch != s->epoch) shuffle(s, epoch);
  ch_rng rng = ch_rng_make(s->seed, CH_STREAM_EXAMPLES, (uint32_t)(2 * epoch + 1));
  int64_t first = s->B * (int64_t)ch_rng_permute(rng, (uint64_t)(number % s->batches), (uint64_t)s->batches);
  int count = e->count - first < s->B ? (int)(e->count - first) : s->B, longest = 0;
  for (int i = 0; i < count; i++) {
    int64_t example = s->order[first + i];
    int length = ch_examples_length(e, example) + ch_examples_word_length(e, e->label[example]) - 1;
    if (length > longest) longest = length;
    *used += length;
  }
  int32_t *token = s->token + micro * s->tokens, *row = s->row + micro * s->rows, *target = s->target + micro * s->rows;
  ch_batch *batch = &s->batch[micro];
  *batch = (ch_batch){.T = ch_padded_length(longest), .token = token, .row = row, .target = target};
  batch->rows = ch_examples_lay_out(e, s->order, first, count, -1, s->B, batch->T, token, row, target);
  return count;
}
