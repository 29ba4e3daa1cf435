#include "data/sample.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

/* Multiples of the golden ratio, modulo one: the blocks whose key is below any threshold are spread evenly over the
 * text. So keeping the smallest keys thins the sample evenly, however long the text is. */
static uint64_t key_of(uint64_t number) { return number * UINT64_C(0x9E3779B97F4A7C15); }

static int by_key(const void *a, const void *b) {
  uint64_t x = ((const ch_sample_block *)a)->key, y = ((const ch_sample_block *)b)->key;
  return (x > y) - (x < y);
}

static int by_number(const void *a, const void *b) {
  uint64_t x = ((const ch_sample_block *)a)->number, y = ((const ch_sample_block *)b)->number;
  return (x > y) - (x < y);
}

static void thin(ch_sample *s) {
  qsort(s->blocks, s->count, sizeof *s->blocks, by_key);
  while (s->bytes > s->limit && s->count > 1) {
    s->count--;
    s->bytes -= s->blocks[s->count].size;
    free(s->blocks[s->count].text);
  }
}

int ch_sample_add(ch_sample *s, const char *text, size_t size) {
  if (s->count == s->capacity) {
    size_t capacity = s->capacity ? 2 * s->capacity : 64;
    CH_TRY(CH_RESIZE(&s->blocks, capacity, "the tokenizer's text sample"));
    s->capacity = capacity;
  }
  char *copy;
  CH_TRY(CH_ALLOC(&copy, size, "the tokenizer's text sample"));
  memcpy(copy, text, size);
  s->blocks[s->count++] = (ch_sample_block){s->seen, key_of(s->seen), copy, size};
  s->seen++;
  s->bytes += size;
  if (s->bytes > s->limit + s->limit / 4) thin(s); /* rarely: after each quarter of the limit */
  return CHOIR_OK;
}

void ch_sample_finish(ch_sample *s) {
  if (!s->count) return;
  thin(s);
  qsort(s->blocks, s->count, sizeof *s->blocks, by_number);
}

void ch_sample_free(ch_sample *s) {
  for (size_t i = 0; i < s->count; i++) free(s->blocks[i].text);
  free(s->blocks);
}
