/* Reading data back: sampling is a function of (seed, sample number). */
#include "data/data.h"
#include "data/text.h"
#include "data_testing.h"

/* Which source, and which number within it, against counting; and the proportions of every stretch. */
static void mixture_is_in_proportion(void **state) {
  static const double weights[] = {0.05, 0.25, 0.7};
  enum { SAMPLES = 20000 };
  choir_data_source weighted[3];
  choir_data_build_options o = options("mix");
  for (int i = 0; i < 3; i++) weighted[i] = sources[i], weighted[i].weight = 4 * weights[i];
  o.sources = weighted;
  test_ok(choir_data_build(&o));
  choir_data *d = opened("mix");
  for (uint64_t seed = 0; seed < 4; seed++) {
    uint64_t counts[3] = {0}, before;
    for (uint64_t s = 0; s < SAMPLES; s++) {
      int source = ch_data_sample_source(d, seed, s, &before);
      assert_int_equal(before, counts[source]);
      counts[source]++;
      for (int i = 0; i < 3; i++) assert_true(fabs((double)counts[i] - weights[i] * (double)(s + 1)) < 4);
    }
  }
  choir_data_free(d);
}

/* Far along, where walking there is no option: the same counts by steps of one. */
static void mixture_holds_far_along(void **state) {
  choir_data *d = opened("data");
  static const uint64_t starts[] = {(UINT64_C(1) << 32) - 3000, (UINT64_C(1) << 40) + 12345, UINT64_C(7) << 32};
  for (int k = 0; k < 3; k++) {
    uint64_t counts[3] = {0}, before, total = 0;
    for (uint64_t s = starts[k]; s < starts[k] + 6000; s++) {
      int source = ch_data_sample_source(d, 5, s, &before);
      if (counts[source]) assert_int_equal(before, counts[source]);
      counts[source] = before + 1;
    }
    for (int i = 0; i < 3; i++) total += counts[i];
    assert_int_equal(total, starts[k] + 6000);
  }
  choir_data_free(d);
}

/* The samples that fall on the very ends of a source's part of the circle: found by solving a s + b = point. */
static void mixture_is_exact_at_its_borders(void **state) {
  choir_data *d = opened("data");
  uint32_t step = 2654435769u, inverse = 1;
  for (int i = 0; i < 5; i++) inverse *= 2 - step * inverse; /* Newton, modulo 2^32 */
  uint32_t b = (uint32_t)ch_rng_bits(ch_rng_make(6, CH_STREAM_MIXTURE, 0), 0);
  for (int i = 0; i < 3; i++)
    for (int last = 0; last < 2; last++) {
      uint32_t point = (uint32_t)(d->sources[i + last].begin - (uint64_t)last);
      uint64_t sample = (point - b) * inverse, before, total = 0;
      assert_int_equal(ch_data_sample_source(d, 6, sample, &before), i);
      for (int k = 0; k < 3;
           k++) { /* the counts after it add up to sample + 1: each source's next sample tells its own */
        uint64_t next = sample + 1, count;
        while (ch_data_sample_source(d, 6, next, &count) != k) next++;
        total += count;
        if (k == i) assert_int_equal(count, before + 1);
      }
      assert_int_equal(total, sample + 1);
    }
  choir_data_free(d);
}

/* One source: each epoch hands out every window once, in an order of its own. */
static void epochs_are_permutations(void **state) {
  enum { LENGTH = 32 };
  const char *files[] = {inputs[1][0], NULL};
  choir_data_source one = {.name = "book", .inputs = files};
  choir_data_build_options o = options("single");
  o.sources = &one, o.source_count = 1;
  test_ok(choir_data_build(&o));
  choir_data *d = opened("single");
  const ch_shard *shard = &d->sources[0].train;
  size_t windows = (size_t)(shard->info.tokens - 1) / LENGTH;
  int32_t *all = malloc(windows * (LENGTH + 1) * sizeof *all), want[LENGTH + 1];
  uint64_t *first = calloc(windows, sizeof *first);
  ch_data_position position = {0};
  for (uint64_t epoch = 1; epoch <= 3; epoch++) {
    size_t moved = 0, same = 0;
    ch_data_next(d, 9, LENGTH, &position, (int)windows, all);
    for (size_t w = 0; w < windows; w++) { /* each window of the shard is among those handed out: found by its text */
      ch_shard_read(shard, w * LENGTH, LENGTH + 1, want);
      size_t k = 0;
      while (k < windows && memcmp(all + k * (LENGTH + 1), want, sizeof want)) k++;
      assert_true(k < windows);
      moved += k != w, same += first[w] == k + 1;
      first[w] = k + 1;
    }
    assert_true(moved > windows * 9 / 10 && same < windows / 10 + 3);
  }
  assert_int_equal(position.samples, 3 * windows);
  free(all);
  free(first);
  choir_data_free(d);
}

static void position_is_the_whole_state(void **state) {
  enum { LENGTH = 16, N = 500, W = LENGTH + 1 };
  choir_data *d = opened("data"), *again = opened("data");
  static int32_t whole[N * W], part[N * W], other[N * W];
  ch_data_position a = {0}, b = {0};
  ch_data_next(d, 1, LENGTH, &a, N, whole);
  for (int at = 0, step = 1; at < N; at += step, step = step % 7 + 1) {
    if (at + step > N) step = N - at;
    ch_data_next(at % 2 ? d : again, 1, LENGTH, &b, step, part + at * W);
  }
  assert_memory_equal(whole, part, sizeof whole);
  b.samples = 123;
  ch_data_next(again, 1, LENGTH, &b, 10, part);
  assert_memory_equal(whole + 123 * W, part, sizeof(int32_t) * 10 * W);
  a.samples = 0;
  ch_data_next(d, 2, LENGTH, &a, N, other);
  assert_memory_not_equal(whole, other, sizeof whole);
  for (int i = 0; i < N * W; i++) assert_true(whole[i] >= 0 && whole[i] < 600);
  choir_data_free(d);
  choir_data_free(again);
}

static void heldout_windows_cover_the_share(void **state) {
  choir_data *d = opened("data");
  static const int lengths[] = {1, 7, 100, 100000};
  for (int l = 0; l < 4; l++) {
    int length = lengths[l];
    int32_t *tokens = malloc(sizeof *tokens * (size_t)(length + 1)), id;
    int64_t index = 0;
    for (int i = 0; i < 3; i++) {
      const ch_shard *s = &d->sources[i].heldout;
      uint64_t targets = 0;
      while (targets + 1 < s->info.tokens) {
        ch_data_heldout(d, length, index++, tokens);
        for (int k = 0; k <= length; k++) {
          if (targets + (uint64_t)k < s->info.tokens) ch_shard_read(s, targets + (uint64_t)k, 1, &id);
          assert_int_equal(tokens[k], targets + (uint64_t)k < s->info.tokens ? id : -1);
        }
        targets += (uint64_t)length;
      }
    }
    assert_int_equal(index, ch_data_heldout_windows(d, length));
    free(tokens);
  }
  choir_data_free(d);
}

static void counts_and_hashes(void **state) {
  choir_data *d = opened("data"), *mix = opened("mix");
  choir_data_info info;
  choir_data_get_info(d, &info);
  uint64_t counts[600], sum = 0;
  memset(counts, 0xFF, sizeof counts);
  ch_data_unigram(d, counts);
  for (int i = 0; i < 600; i++) sum += counts[i];
  assert_int_equal(sum, info.train_tokens);
  assert_int_equal(counts[1], d->sources[0].train.info.documents + d->sources[1].train.info.documents +
                                  d->sources[2].train.info.documents);
  assert_int_not_equal(d->hash, mix->hash); /* other weights */
  for (int i = 0; i < 3; i++)
    assert_true(d->sources[i].weight == (double)d->sources[i].train.info.tokens); /* no weights requested */
  assert_int_equal(d->tokenizer_hash, mix->tokenizer_hash);
  assert_non_null(strstr(d->tokenizer_path, "/tokenizer.model"));
  test_ok(ch_data_check(d, 64));
  test_fails(ch_data_check(d, 30000), CHOIR_ERROR_ARGUMENT, "source \"few\" has ");
  test_fails(ch_data_check(d, 0), CHOIR_ERROR_ARGUMENT, "length is 0");
  choir_data_free(d);
  choir_data_free(mix);
}

static void each_run_holds_out_one(void **state) {
  static const double shares[] = {0.01, 0.3, 0.5, 0.0123, 1.0 / 3};
  for (int k = 0; k < 5; k++) {
    ch_holdout h = {.seed = 4, .share = shares[k]}, other = {.seed = 4, .share = shares[k], .source = 1};
    uint64_t held = 0, apart = 0;
    for (uint64_t unit = 0; unit < 10000; unit++) {
      held += (uint64_t)ch_held_out(&h, unit);
      apart += ch_held_out(&h, unit) != ch_held_out(&other, unit);
      assert_true(fabs((double)held - shares[k] * (double)(unit + 1)) <= 1.01);
    }
    assert_true(apart > 20); /* every source draws for itself */
  }
}

static int resume_reader(void *context) {
  (void)context;
  return 0;
}

/* Of few bytes 128, and half of them at most; blocks of half of a share, from 64 bytes to 64 KiB. */
static void little_text_holds_out_more(void **state) {
  static const struct {
    size_t bytes;
    double requested, share;
    size_t block;
  } of[] = {{100, 0.01, 0.5, 64}, {1000, 0.01, 0.128, 64}, {20000, 0.05, 0.05, 500}, {1 << 20, 0.5, 0.5, 1 << 16}};
  char *text = malloc(1 << 20);
  memset(text, 'a', 1 << 20);
  for (int i = 0; i < 4; i++) {
    const char *files[] = {corpus_path("little"), NULL};
    ch_holdout h;
    corpus_save(files[0], text, of[i].bytes);
    test_ok(ch_holdout_plan(&(ch_text_options){.inputs = files}, 4, 0, of[i].requested, resume_reader, NULL, &h));
    if (!h.by_blocks || fabs(h.share - of[i].share) > 1e-12 || h.block_bytes != of[i].block)
      fail_msg("%zu bytes: %g of blocks of %zu", of[i].bytes, h.share, h.block_bytes);
  }
  free(text);
}

TEST_MAIN(begin, end, mixture_is_in_proportion, mixture_holds_far_along, mixture_is_exact_at_its_borders,
          epochs_are_permutations, position_is_the_whole_state, heldout_windows_cover_the_share, counts_and_hashes,
          each_run_holds_out_one, little_text_holds_out_more)
