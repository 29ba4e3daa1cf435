#include "data/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"

/* log2 of the size of a table that is at most half full. */
static int bits_for(size_t count) {
  int bits = 4;
  while (((size_t)1 << bits) < 2 * count) bits++;
  return bits;
}

int ch_bpe_begin(ch_bpe *b, size_t merges, size_t wholes) {
  b->merge_bits = bits_for(merges), b->whole_bits = bits_for(wholes);
  CH_TRY(CH_ALLOC(&b->merge, (size_t)1 << b->merge_bits, "merges of a tokenizer"));
  if (wholes) CH_TRY(CH_ALLOC(&b->whole, (size_t)1 << b->whole_bits, "tokens of a tokenizer"));
  memset(b->merge, 0xFF, sizeof *b->merge << b->merge_bits);
  if (wholes) memset(b->whole, 0xFF, sizeof *b->whole << b->whole_bits);
  return CHOIR_OK;
}

void ch_bpe_free(ch_bpe *b) {
  if (!b) return;
  ch_words_free(&b->words);
  free(b->merge);
  free(b->whole);
  free(b);
}

/* The entry of a pair, or the free entry where it would be inserted. */
static ch_merge *find_merge(const ch_bpe *b, int32_t left, int32_t right) {
  uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, mask = ((uint64_t)1 << b->merge_bits) - 1;
  for (uint64_t i = pair * 0x9E3779B97F4A7C15U >> (64 - b->merge_bits);; i++) {
    ch_merge *m = &b->merge[i & mask];
    if (m->made < 0 || (m->left == left && m->right == right)) return m;
  }
}

int ch_bpe_add_merge(ch_bpe *b, ch_merge merge) {
  ch_merge *place = find_merge(b, merge.left, merge.right);
  if (place->made >= 0) return 0;
  *place = merge;
  return 1;
}

static int32_t *find_whole(const ch_bpe *b, const char *text, size_t size) {
  uint64_t mask = ((uint64_t)1 << b->whole_bits) - 1;
  for (uint64_t i = XXH64(text, size, 0);; i++) {
    int32_t *id = &b->whole[i & mask];
    if (*id < 0 || (b->surface[*id].size == size && !memcmp(b->surface[*id].text, text, size))) return id;
  }
}

void ch_bpe_add_whole(ch_bpe *b, int32_t id) { *find_whole(b, b->surface[id].text, b->surface[id].size) = id; }

/* ---- a word ---- */

/* A token of the word and the indices of its neighbors (-1: none). A token that was merged into its left neighbor
 * has id -1. */
typedef struct part {
  int32_t id, before, next;
} part;

/* A min-heap of possible merges: the rank in the upper half, the index of the left token in the lower half. */
typedef struct heap {
  uint64_t *key;
  size_t count;
} heap;

static void push(heap *h, uint64_t key) {
  size_t i = h->count++;
  for (; i && h->key[(i - 1) / 2] > key; i = (i - 1) / 2) h->key[i] = h->key[(i - 1) / 2];
  h->key[i] = key;
}

static uint64_t pop(heap *h) {
  uint64_t min = h->key[0], last = h->key[--h->count];
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < h->count; i = child) {
    if (child + 1 < h->count && h->key[child + 1] < h->key[child]) child++;
    if (h->key[child] >= last) break;
    h->key[i] = h->key[child];
  }
  h->key[i] = last;
  return min;
}

/* The merge of the token at index `at` with the next one; NULL: none. */
static const ch_merge *merge_at(const ch_bpe *b, const part *p, int32_t at) {
  if (at < 0 || p[at].id < 0 || p[at].next < 0) return NULL;
  const ch_merge *m = find_merge(b, p[at].id, p[p[at].next].id);
  return m->made < 0 ? NULL : m;
}

static void offer(const ch_bpe *b, const part *p, int32_t at, heap *h) {
  const ch_merge *m = merge_at(b, p, at);
  if (m) push(h, (uint64_t)(uint32_t)m->rank << 32 | (uint32_t)at);
}

/* parts [size]; h has space for 3 size entries: one for every pair, and two for each merge. */
static void merge_all(const ch_bpe *b, part *p, int32_t size, heap *h) {
  for (int32_t i = 0; i < size; i++) offer(b, p, i, h);
  while (h->count) {
    uint64_t key = pop(h);
    int32_t at = (int32_t)(uint32_t)key;
    const ch_merge *m = merge_at(b, p, at);
    if (!m || (uint64_t)m->rank != key >> 32) continue; /* outdated: one of the two tokens has been merged since */
    int32_t gone = p[at].next, next = p[gone].next;
    p[at].id = m->made, p[at].next = next, p[gone].id = -1;
    if (next >= 0) p[next].before = at;
    offer(b, p, p[at].before, h);
    offer(b, p, at, h);
  }
}

int ch_bpe_encode(const ch_bpe *b, const char *word, size_t size, int32_t *ids, size_t *count) {
  enum { SHORT = 64 };
  part short_word[SHORT], *p = short_word;
  uint64_t short_keys[3 * SHORT];
  heap h = {short_keys, 0};
  if (b->whole && (ids[0] = *find_whole(b, word, size)) >= 0) return *count = 1, CHOIR_OK;
  if (size > INT32_MAX / 4) return ch_error(CHOIR_ERROR_UNSUPPORTED, "a word of %zu bytes is too long", size);
  if (size > SHORT) {
    p = reallocarray(NULL, size, sizeof *p);
    h.key = reallocarray(NULL, size, 3 * sizeof *h.key);
  }
  int code = p && h.key ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "not enough memory for a word of %zu bytes", size);
  for (int32_t i = 0, n = (int32_t)size; i < n && !code; i++)
    p[i] = (part){b->byte_id[(unsigned char)word[i]], i - 1, i + 1 < n ? i + 1 : -1};
  if (!code) merge_all(b, p, (int32_t)size, &h);
  *count = 0;
  for (int32_t i = 0; i >= 0 && !code; i = p[i].next) ids[(*count)++] = p[i].id;
  if (size > SHORT) free(p), free(h.key);
  return code;
}
