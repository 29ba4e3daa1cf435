/* The tests of tokenizer and data share a place for files, text to write, and a small tokenizer. */
#ifndef CH_TESTS_CORPUS_H
#define CH_TESTS_CORPUS_H

#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "choir/tokenizer.h"
#include "data/encoder.h"
#include "file/dir.h"
#include "file/file.h"
#include "testing.h"

static char corpus_home[64];

/* PATH in the test program's own directory; the last 64 results stay valid. */
static inline const char *corpus_path(const char *name) {
  static char paths[64][256];
  static int next;
  char *path = paths[next++ % 64];
  snprintf(path, sizeof paths[0], "%s/%s", corpus_home, name);
  return path;
}

/* Without fsync, which would be most of the tests' time. */
static inline void corpus_save(const char *path, const void *data, size_t size) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, size, f), size);
  assert_int_equal(fclose(f), 0);
}

static inline ch_buffer corpus_load(const char *path) {
  ch_buffer b = {0};
  test_ok(ch_file_read(path, (size_t)1 << 30, &b.data, &b.size));
  b.capacity = b.size;
  return b;
}

static inline void corpus_add(ch_buffer *b, const char *text) { test_ok(ch_buffer_append(b, text, strlen(text))); }

/* Appends about `bytes` of made-up prose: lines of words, few of them often and many of them seldom, some punctuation
 * and numbers. */
static inline void corpus_prose(ch_buffer *b, size_t bytes, uint32_t sub) {
  static const char *const syllables[] = {"ka", "to", "mi", "re", "sol", "an", "el",  "is",
                                          "or", "un", "th", "st", "br",  "é",  "ing", "ed"};
  ch_rng r = ch_rng_make(11, CH_STREAM_TEST, sub);
  size_t start = b->size;
  for (uint64_t i = 0; b->size - start < bytes; i++) {
    uint64_t word = (uint64_t)(exp(ch_rng_uniform(r, 2 * i) * log(4000))), rest = ch_rng_below(r, 2 * i + 1, 100);
    for (uint64_t w = word; w; w /= 16) corpus_add(b, syllables[w % 16]);
    if (rest == 3) {
      char number[16];
      snprintf(number, sizeof number, " %d", (int)word);
      corpus_add(b, number);
    }
    corpus_add(b, rest < 10 ? "\n" : rest < 15 ? ". " : rest < 18 ? ",  " : " ");
  }
}

/* Trains a tokenizer on the files and loads it. */
static inline choir_tokenizer *corpus_tokenizer(const char *input, const char *output, int vocab) {
  const char *inputs[] = {input, NULL};
  choir_tokenizer_train_options o = CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT;
  choir_tokenizer *t;
  o.inputs = inputs, o.type = "unigram", o.vocab_size = vocab, o.output = output;
  test_ok(choir_tokenizer_train(&o));
  test_ok(choir_tokenizer_load(output, &t));
  return t;
}

/* In memory where there is such a place: fsync on a disk would be most of the tests' time. */
static inline int corpus_make_home(void) {
  snprintf(corpus_home, sizeof corpus_home, "%s/choir-test-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
  return mkdtemp(corpus_home) ? 0 : -1;
}

/* The test program's directory, with text.txt (200 kB) and small.model in it. */
static inline int corpus_begin(void **state) {
  (void)state;
  if (corpus_make_home()) return -1;
  ch_buffer b = {0};
  corpus_prose(&b, 200000, 1);
  corpus_save(corpus_path("text.txt"), b.data, b.size);
  free(b.data);
  choir_tokenizer_free(corpus_tokenizer(corpus_path("text.txt"), corpus_path("small.model"), 600));
  return 0;
}

static inline int corpus_end(void **state) {
  (void)state;
  return ch_dir_remove(corpus_home);
}

/* The same with that tokenizer loaded. */
static choir_tokenizer *corpus_small;

static inline int corpus_begin_small(void **state) {
  return corpus_begin(state) || choir_tokenizer_load(corpus_path("small.model"), &corpus_small);
}

static inline int corpus_end_small(void **state) {
  choir_tokenizer_free(corpus_small);
  return corpus_end(state);
}

/* Text to tokens and back; neither unknown nor an end of text is among them. */
static inline void corpus_round_trip(const choir_tokenizer *t, const char *text, size_t size) {
  int32_t *ids;
  size_t count, length;
  char *back;
  test_ok(choir_tokenizer_encode(t, text, size, &ids, &count));
  test_ok(choir_tokenizer_decode(t, ids, count, &back, &length));
  assert_int_equal(length, size);
  assert_memory_equal(back, text, size);
  assert_int_equal(back[length], 0);
  for (size_t i = 0; i < count; i++)
    assert_true(ids[i] < choir_tokenizer_vocab_size(t) && t->surface[ids[i]].size); /* control pieces have no text */
  free(ids);
  free(back);
}

#endif
