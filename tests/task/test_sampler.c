/* Batches of a training set: what they hold, and that they are a function of their number alone. */
#include "task/examples.h"
#include "testing.h"

enum { COUNT = 701, B = 8, LABELS = 3 };

/* Prompts of 1 to 40 tokens, the first of which is the example's own; words of one, two and one tokens. */
static void make_examples(ch_examples *e) {
  ch_rng rng = ch_rng_make(1, CH_STREAM_TEST, 9);
  *e = (ch_examples){.count = COUNT, .longest_word = 2, .longest = 40, .step = CH_LENGTH_STEP, .mask = -1};
  e->tokens.ids = malloc(COUNT * 40 * sizeof(int32_t));
  e->begin = malloc((COUNT + 1) * sizeof *e->begin);
  e->label = malloc(COUNT * sizeof *e->label);
  e->row = malloc(COUNT * sizeof *e->row);
  e->words.ids = malloc(4 * sizeof(int32_t));
  memcpy(e->words.ids, (int32_t[]){9001, 9002, 9003, 9004}, 4 * sizeof(int32_t));
  memcpy(e->word_begin, (int[]){0, 1, 3, 4}, 4 * sizeof(int));
  e->begin[0] = 0;
  for (int64_t i = 0; i < COUNT; i++) {
    int length = 1 + (int)ch_rng_below(rng, (uint64_t)i, 40);
    for (int t = 0; t < length; t++) e->tokens.ids[e->begin[i] + t] = (int32_t)(t ? 5000 + t : i);
    e->begin[i + 1] = e->begin[i] + length;
    e->label[i] = (int)(i % LABELS);
    e->row[i] = i;
  }
}

/* Every row of a batch is an example and its word, every target the next token of it; counts the examples. */
static void check_batch(const ch_examples *e, const ch_batch *batch, int count, int *seen) {
  int r = 0;
  assert_int_equal(batch->T % CH_LENGTH_STEP, 0);
  for (int b = 0; b < B; b++) {
    const int32_t *token = batch->token + b * batch->T;
    if (b >= count) {
      for (int t = 0; t < batch->T; t++) assert_int_equal(token[t], -1);
      continue;
    }
    int i = token[0], length = ch_examples_length(e, i), label = e->label[i];
    seen[i]++;
    assert_memory_equal(token, ch_examples_prompt(e, i), (size_t)length * sizeof *token);
    for (int w = 0; w < ch_examples_word_length(e, label); w++, r++) {
      assert_int_equal(batch->row[r], b * batch->T + length - 1 + w);
      assert_int_equal(batch->target[r], ch_examples_word(e, label)[w]);
      if (w) assert_int_equal(token[length + w - 1], batch->target[r - 1]);
    }
    for (int t = length + ch_examples_word_length(e, label) - 1; t < batch->T; t++) assert_int_equal(token[t], -1);
  }
  assert_int_equal(r, batch->rows);
}

static void epochs(void **state) {
  ch_examples e;
  ch_sampler s;
  make_examples(&e);
  test_ok(ch_sampler_make(&e, 5, B, 1, &s));
  assert_int_equal(s.batches, (COUNT + B - 1) / B);
  int64_t company[2] = {0}; /* sums of tokens that tell which examples share a batch with example 0 */
  for (int64_t epoch = 0; epoch < 3; epoch++) {
    int seen[COUNT] = {0};
    int64_t used = 0, positions = 0;
    for (int64_t k = 0; k < s.batches; k++) {
      int count = ch_sampler_get(&s, epoch * s.batches + k, 0, &used);
      check_batch(&e, s.batch, count, seen);
      positions += (int64_t)B * s.batch->T;
      for (int b = 0; b < count && seen[0] == 1 && epoch < 2; b++) company[epoch] += s.batch->token[b * s.batch->T];
      if (seen[0]) seen[0] = 2; /* from here on */
    }
    for (int i = 0; i < COUNT; i++)
      if (seen[i] != (i ? 1 : 2)) fail_msg("example %d %d times in epoch %d", i, seen[i], (int)epoch);
    int64_t tokens = e.begin[COUNT] + COUNT / LABELS; /* a word of two tokens adds one to its prompt */
    assert_true(used >= tokens && used <= tokens + 1);
    assert_true((double)used / (double)positions > 0.6); /* in any order it would be 0.43; rounding leaves 0.68 */
  }
  assert_true(company[0] != company[1]);
  ch_sampler_free(&s);
  ch_examples_free(&e);
}

/* Whatever was asked for before. */
static void by_number(void **state) {
  ch_examples e;
  ch_sampler a, b;
  int64_t used = 0;
  make_examples(&e);
  test_ok(ch_sampler_make(&e, 5, B, 1, &a));
  test_ok(ch_sampler_make(&e, 5, B, 2, &b));
  for (int64_t k = 0; k < 2 * a.batches; k += 11) {
    ch_sampler_get(&a, k, 0, &used);
    ch_sampler_get(&b, 2 * a.batches - 1 - k, 0, &used);
    ch_sampler_get(&b, k, 1, &used);
    assert_int_equal(a.batch[0].T, b.batch[1].T);
    assert_memory_equal(a.batch[0].token, b.batch[1].token, (size_t)(B * a.batch[0].T) * sizeof(int32_t));
    assert_memory_equal(a.batch[0].target, b.batch[1].target, (size_t)a.batch[0].rows * sizeof(int32_t));
  }
  ch_sampler_free(&a), ch_sampler_free(&b);
  test_ok(ch_sampler_make(&e, 6, B, 1, &b));
  test_ok(ch_sampler_make(&e, 5, B, 1, &a));
  ch_sampler_get(&a, 3, 0, &used), ch_sampler_get(&b, 3, 0, &used);
  assert_true(a.batch->T != b.batch->T || memcmp(a.batch->token, b.batch->token, (size_t)(B * a.batch->T) * 4));
  ch_sampler_free(&a), ch_sampler_free(&b);
  ch_examples_free(&e);
}

/* A limited number of examples comes from the whole set in even steps, and each example is complete. */
static void subsampled_examples(void **state) {
  ch_examples e;
  make_examples(&e);
  int64_t longest = 0;
  ch_examples_thin(&e, 0), ch_examples_thin(&e, COUNT);
  assert_int_equal(e.count, COUNT);
  ch_examples_thin(&e, 100);
  assert_int_equal(e.count, 100);
  for (int64_t i = 0; i < 100; i++) {
    int32_t number = ch_examples_prompt(&e, i)[0];
    assert_int_equal(number, i * COUNT / 100);
    assert_int_equal(e.row[i], number);
    assert_int_equal(e.label[i], number % LABELS);
    for (int t = 1; t < ch_examples_length(&e, i); t++) assert_int_equal(ch_examples_prompt(&e, i)[t], 5000 + t);
    if (ch_examples_length(&e, i) > longest) longest = ch_examples_length(&e, i);
  }
  assert_int_equal(e.longest, longest);
  ch_examples_thin(&e, 1);
  assert_int_equal(e.longest, ch_examples_length(&e, 0)); /* and of the only one */
  ch_examples_free(&e);
}

TEST_MAIN(NULL, NULL, epochs, by_number, subsampled_examples)
