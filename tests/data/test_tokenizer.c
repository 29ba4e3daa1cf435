/* The tokenizer: exact round trips of everything, errors, independence of threads. */
#include <pthread.h>

#include "base/text.h"
#include "corpus.h"
#include "data/encoder.h"
#include "data/sample.h"

static void round_trip(const char *text, size_t size) { corpus_round_trip(corpus_small, text, size); }
#define ROUND_TRIP(text) round_trip((text), sizeof(text) - 1)

static void keeps_every_text(void **state) {
  ROUND_TRIP("");
  ROUND_TRIP(" ");
  ROUND_TRIP("     ");
  ROUND_TRIP("kato mire");
  ROUND_TRIP("  kato   mire  ");
  ROUND_TRIP("\n");
  ROUND_TRIP("\n\n\n kato\n");
  ROUND_TRIP("a\tb\t\tc \t d");
  ROUND_TRIP("kato\r\nmire\r\n\r\n");
  ROUND_TRIP("\r\r \r");
  ROUND_TRIP("\xF0\x9F\x98\x80 \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x94\xAC"); /* emoji, with a joiner */
  ROUND_TRIP("e\xCC\x81 \xC3\xA9 \xEF\xAC\x81 \xEF\xBC\xA1"); /* combining mark, ligature, full width */
  ROUND_TRIP("\xE2\x96\x81");                                 /* U+2581 */
  ROUND_TRIP(" \xE2\x96\x81 kato\xE2\x96\x81\xE2\x96\x81mire \xE2\x96\x80\xE2\x96\x85"); /* and its neighbours */
  ROUND_TRIP("\xEF\xBF\xBD \xEF\xBB\xBF \xEF\xBF\xBF");                                  /* U+FFFD, U+FEFF, U+FFFF */
  ROUND_TRIP("\xC2\xA0\xE3\x80\x80\xE2\x80\x83");                                        /* other spaces */
  ROUND_TRIP("<s> </s> <unk> <pad> </s></s>");
  ROUND_TRIP("<0x0A> <0xE2><0x96><0x81>");
  ROUND_TRIP("kato\0mire\0\0 \0");
  ROUND_TRIP("\x01\x02\x1B[0m\x7F\x1F");
  ROUND_TRIP("\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C \xD9\x85\xD8\xB1\xD8\xAD\xD8\xA8\xD8\xA7");
  ROUND_TRIP("\xF4\x8F\xBF\xBF \xF0\x90\x80\x80 \xC2\x80");
}

/* Writes the code point; surrogates are none. */
static size_t utf8(uint32_t c, char *p) {
  if (c < 0x80) return p[0] = (char)c, 1;
  if (c < 0x800) return p[0] = (char)(0xC0 | c >> 6), p[1] = (char)(0x80 | (c & 63)), 2;
  if (c < 0x10000)
    return p[0] = (char)(0xE0 | c >> 12), p[1] = (char)(0x80 | (c >> 6 & 63)), p[2] = (char)(0x80 | (c & 63)), 3;
  p[0] = (char)(0xF0 | c >> 18), p[1] = (char)(0x80 | (c >> 12 & 63)), p[2] = (char)(0x80 | (c >> 6 & 63)),
  p[3] = (char)(0x80 | (c & 63));
  return 4;
}

static void keeps_random_text(void **state) {
  static const uint32_t ranges[] = {0x80, 0x80, 0x250, 0x3000, 0xD800, 0x110000};
  ch_rng r = ch_rng_make(5, CH_STREAM_TEST, 0);
  char text[4000];
  for (uint64_t trial = 0, k = 0; trial < 300; trial++) {
    size_t size = 0;
    while (size < 10 * trial && size + 4 < sizeof text) {
      uint32_t c = (uint32_t)ch_rng_below(r, k, ranges[ch_rng_below(r, k + 1, 6)]);
      k += 2;
      if (c < 0xD800 || c >= 0xE000) size += utf8(c, text + size);
    }
    round_trip(text, size);
  }
}

/* Runs longer than any limit on words, of spaces, letters and wide characters. */
static void keeps_long_runs(void **state) {
  static const char *const units[] = {" ", "a", "\xE4\xBD\xA0", "\xE2\x96\x81", "\n", "kato"};
  for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
    ch_buffer b = {0};
    corpus_add(&b, "x");
    while (b.size < 100001) corpus_add(&b, units[u]);
    round_trip(b.data, b.size);
    free(b.data);
  }
}

static void control_pieces_are_text(void **state) {
  int32_t *ids;
  size_t count;
  test_ok(choir_tokenizer_encode(corpus_small, "</s>", 4, &ids, &count));
  assert_true(count > 1);
  for (size_t i = 0; i < count; i++) assert_int_not_equal(ids[i], choir_tokenizer_eos(corpus_small));
  free(ids);
  test_ok(choir_tokenizer_encode(corpus_small, "\n", 1, &ids, &count));
  assert_int_equal(count, 1);
  assert_string_equal(choir_tokenizer_piece(corpus_small, ids[0]), "<0x0A>");
  free(ids);
}

static void names_pieces(void **state) {
  assert_int_equal(choir_tokenizer_vocab_size(corpus_small), 600);
  assert_string_equal(choir_tokenizer_piece(corpus_small, choir_tokenizer_eos(corpus_small)), "</s>");
  assert_null(choir_tokenizer_piece(corpus_small, -1));
  assert_null(choir_tokenizer_piece(corpus_small, 600));
  for (int i = 0; i < 600; i++) assert_null(strstr(choir_tokenizer_piece(corpus_small, i), "\xE2\x96\x81"));
}

static void refuses_what_is_not_utf8(void **state) {
  static const char *const bad[] = {"\x80",
                                    "\xC0\x80",
                                    "\xC1\xBF",
                                    "\xE0\x80\x80",
                                    "\xE0\x9F\xBF",
                                    "\xED\xA0\x80",
                                    "\xED\xBF\xBF",
                                    "\xF0\x80\x80\x80",
                                    "\xF4\x90\x80\x80",
                                    "\xF5\x80\x80\x80",
                                    "\xFE",
                                    "\xFF",
                                    "\xE2\x96",
                                    "\xC3",
                                    "\xF0\x9F\x98",
                                    "\xE2\x28\xA1"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    for (size_t before = 0; before < 20; before++) {
      char text[64], offset[32];
      int32_t *ids;
      size_t count;
      memset(text, 'k', before);
      snprintf(text + before, sizeof text - before, "%s", bad[i]);
      snprintf(offset, sizeof offset, "byte %zu ", before);
      test_fails(choir_tokenizer_encode(corpus_small, text, strlen(text), &ids, &count), CHOIR_ERROR_FORMAT, offset);
      assert_null(ids);
    }
  int32_t wrong[] = {5, 600}, *right = wrong;
  char *text;
  size_t length;
  test_fails(choir_tokenizer_decode(corpus_small, right, 2, &text, &length), CHOIR_ERROR_ARGUMENT, "token 1 is 600");
  wrong[1] = -1;
  test_fails(choir_tokenizer_decode(corpus_small, right, 2, &text, &length), CHOIR_ERROR_ARGUMENT, "token 1 is -1");
}

/* A long text (memory of words in use), the same text line by line, and SentencePiece itself on whole lines. */
static void pieces_add_up(void **state) {
  ch_buffer text = corpus_load(corpus_path("text.txt"));
  int32_t *whole, part[4096];
  size_t count, at = 0, n;
  test_ok(choir_tokenizer_encode(corpus_small, text.data, text.size, &whole, &count));
  for (char *p = text.data, *end = text.data + text.size; p < end;) {
    char *q = memchr(p, '\n', (size_t)(end - p));
    size_t size = (size_t)((q ? q : end) - p);
    test_ok(ch_spm_encode(corpus_small->spm, p, size, part, 4096, &n));
    assert_true(n <= 4096 && at + n <= count);
    assert_memory_equal(part, whole + at, n * sizeof *part);
    at += n;
    if (q) assert_int_equal(whole[at++], corpus_small->byte_id['\n']);
    p += size + 1;
  }
  assert_int_equal(at, count);
  free(whole);
  free(text.data);
}

static int count_asked(void *context) { return ++*(int *)context > 2; }

/* A long text is encoded in pieces, between which it may be stopped: spaces in rows, words longer than any, characters
 * that stand alone, and what is left of them when a piece ends there, give the tokens of the whole. */
static void long_texts_stop(void **state) {
  static const char *const part[] = {" ",  "     ",        "       ",  "a",   "the",
                                     "\n", "\xE2\x96\x81", "\xC3\xA9", "\t ", "words"};
  enum { SIZE = 1 << 19, PARTS = sizeof part / sizeof *part };
  ch_rng rng = ch_rng_make(7, CH_STREAM_TEST, 0);
  ch_buffer text = {0};
  for (uint64_t i = 0; text.size < SIZE; i++) {
    uint64_t n = i % 4000 ? 1 : 5000; /* now and then a word of many pieces */
    const char *p = part[ch_rng_below(rng, i, PARTS)];
    for (uint64_t k = 0; k < n; k++) test_ok(ch_buffer_append(&text, p, strlen(p)));
  }
  ch_ids whole = {0};
  int32_t *ids;
  size_t count;
  int asked = 0;
  test_ok(ch_encode(corpus_small, NULL, text.data, text.size, &whole));
  test_ok(choir_tokenizer_encode(corpus_small, text.data, text.size, &ids, &count));
  assert_int_equal(count, whole.count);
  assert_memory_equal(ids, whole.ids, count * sizeof *ids);
  free(ids);
  test_fails(ch_encode_text(corpus_small, text.data, text.size, count_asked, &asked, &ids, &count),
             CHOIR_ERROR_INTERRUPTED, "stopped at byte ");
  assert_true(asked == 3 && !ids && !count);
  free(whole.ids);
  free(text.data);
}

static void *encode_much(void *argument) {
  ch_buffer *text = argument;
  int32_t *ids;
  size_t count;
  uint64_t sum = 0;
  for (int i = 0; i < 3; i++) {
    if (choir_tokenizer_encode(corpus_small, text->data + i, text->size / 2, &ids, &count)) return NULL;
    for (size_t k = 0; k < count; k++) sum = sum * 31 + (uint64_t)ids[k];
    free(ids);
  }
  return (void *)(uintptr_t)(sum | 1);
}

static void encodes_in_threads(void **state) {
  ch_buffer text = corpus_load(corpus_path("text.txt"));
  pthread_t threads[4];
  void *want = encode_much(&text), *got;
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_much, &text), 0);
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], &got);
    assert_ptr_equal(got, want);
  }
  free(text.data);
}

static int train(const char *input, int vocab, int threads, const char *output) {
  const char *inputs[] = {input, NULL};
  choir_tokenizer_train_options o = CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT;
  o.inputs = inputs, o.type = "unigram", o.vocab_size = vocab, o.output = output, o.threads = threads;
  return choir_tokenizer_train(&o);
}

static int train_type(const char *type, const char *output) {
  const char *inputs[] = {corpus_path("text.txt"), NULL};
  choir_tokenizer_train_options o = CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT;
  o.inputs = inputs, o.type = type, o.vocab_size = 600, o.output = output;
  return choir_tokenizer_train(&o);
}

/* Characters in the longest piece. */
static size_t longest_piece(const choir_tokenizer *tokenizer) {
  size_t longest = 0;
  for (int id = 0; id < tokenizer->vocab; id++) {
    size_t characters = 0;
    for (size_t i = 0; i < tokenizer->surface[id].size; i++)
      characters += ((unsigned char)tokenizer->surface[id].text[i] & 0xC0) != 0x80;
    if (characters > longest) longest = characters;
  }
  return longest;
}

static void every_type_keeps_text(void **state) {
  static const char *const types[] = {"bpe", "unigram", "char", NULL};
  ch_buffer text = corpus_load(corpus_path("text.txt"));
  uint64_t hash[4];
  for (int i = 0; i < 4; i++) { /* the last by default */
    choir_tokenizer *tokenizer;
    int32_t *ids;
    size_t count, length;
    char *back;
    test_ok(train_type(types[i], corpus_path("type.model")));
    test_ok(choir_tokenizer_load(corpus_path("type.model"), &tokenizer));
    hash[i] = choir_tokenizer_hash(tokenizer);
    test_ok(choir_tokenizer_encode(tokenizer, text.data, text.size, &ids, &count));
    test_ok(choir_tokenizer_decode(tokenizer, ids, count, &back, &length));
    assert_int_equal(length, text.size);
    assert_memory_equal(back, text.data, length);
    assert_true(i == 2 ? longest_piece(tokenizer) == 1 : longest_piece(tokenizer) > 2);
    free(ids);
    free(back);
    choir_tokenizer_free(tokenizer);
  }
  assert_true(hash[0] != hash[1] && hash[0] != hash[2] && hash[1] != hash[2]);
  assert_true(hash[3] == hash[0]);
  test_fails(train_type("word", corpus_path("type.model")), CHOIR_ERROR_ARGUMENT,
             "type 'word' is not known; take one of: bpe, unigram, char");
  free(text.data);
}

/* Text without a space, or with few: a space is a piece all the same. */
static void keeps_spaces_that_are_rare(void **state) {
  static const char *const types[] = {"bpe", "unigram", "char"};
  const char *inputs[] = {corpus_path("rare.txt"), NULL};
  for (int spaces = 0; spaces < 2; spaces++) {
    ch_rng r = ch_rng_make(7, CH_STREAM_TEST, 0);
    ch_buffer text = {0};
    for (uint64_t k = 0; k < 30000; k++) {
      char c[4];
      test_ok(ch_buffer_append(&text, c, utf8(0x4E00 + (uint32_t)ch_rng_below(r, k, 60), c)));
      if (k % 40 == 39) corpus_add(&text, spaces && k == 39 ? " " : "\n");
    }
    corpus_save(inputs[0], text.data, text.size);
    free(text.data);
    for (int i = 0; i < 3; i++) {
      choir_tokenizer *t;
      choir_tokenizer_train_options o = CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT;
      o.inputs = inputs, o.output = corpus_path("rare.model"), o.vocab_size = i == 2 ? 270 : 330, o.type = types[i];
      test_ok(choir_tokenizer_train(&o));
      test_ok(choir_tokenizer_load(o.output, &t));
      corpus_round_trip(t, "\xE4\xB8\x80 \xE4\xB8\x81  x", 10);
      choir_tokenizer_free(t);
    }
  }
}

/* SentencePiece passes over a line with U+2585, without a word; what stands around it is learned from all the same. */
static void learns_around_reserved_characters(void **state) {
  ch_buffer text = {0};
  const char *inputs[] = {corpus_path("bars.txt"), NULL}, *out = corpus_path("bars.model");
  choir_tokenizer_train_options o = CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT;
  choir_tokenizer *t;
  int32_t *ids;
  size_t count;
  for (int i = 0; i < 300; i++) corpus_add(&text, i % 2 ? "alpha beta\n" : "zeta\xE2\x96\x85 iota\n");
  corpus_save(inputs[0], text.data, text.size);
  o.inputs = inputs, o.output = out, o.vocab_size = 290;
  test_ok(choir_tokenizer_train(&o));
  test_ok(choir_tokenizer_load(out, &t));
  test_ok(choir_tokenizer_encode(t, "zeta iota", 9, &ids, &count));
  assert_int_equal(count, 2);
  corpus_round_trip(t, "zeta\xE2\x96\x85 iota", 12);
  free(ids);
  free(text.data);
  choir_tokenizer_free(t);
}

static void training_does_not_depend_on_threads(void **state) {
  test_ok(train(corpus_path("text.txt"), 600, 1, corpus_path("again.model")));
  ch_buffer a = corpus_load(corpus_path("small.model")), b = corpus_load(corpus_path("again.model"));
  assert_int_equal(a.size, b.size);
  assert_memory_equal(a.data, b.data, a.size);
  free(a.data);
  free(b.data);
}

static int stop(void *context, const choir_progress *p) {
  assert_true(strlen(p->text) > 5);
  assert_true(p->seconds > 0 && p->seconds < 1000); /* of this call */
  return ++*(int *)context > 0;
}

static void training_fails_clearly(void **state) {
  const char *out = corpus_path("bad.model");
  test_fails(train(corpus_path("text.txt"), 100000, 0, out), CHOIR_ERROR_ARGUMENT,
             "vocab_size 100000 is too large for this text: at most ");
  test_fails(train(corpus_path("text.txt"), 265, 0, out), CHOIR_ERROR_ARGUMENT, "vocab_size 265 is too small");
  test_fails(train(corpus_path("text.txt"), 12, 0, out), CHOIR_ERROR_ARGUMENT, "vocab_size is 12");
  test_fails(train(corpus_path("text.txt"), 256001, 0, out), CHOIR_ERROR_ARGUMENT, "256000");
  test_fails(train(corpus_path("none.txt"), 600, 0, out), CHOIR_ERROR_IO, "none.txt");
  test_fails(train(corpus_path("text.txt"), 600, 0, corpus_path("no/such.model")), CHOIR_ERROR_IO, "no/such.model");
  corpus_save(corpus_path("empty.txt"), "\n\n\t\n", 4);
  test_fails(train(corpus_path("empty.txt"), 600, 0, out), CHOIR_ERROR_FORMAT, "empty.txt: no text");
  corpus_save(corpus_path("latin1.txt"), "caf\xE9\n", 5);
  test_fails(train(corpus_path("latin1.txt"), 600, 0, out), CHOIR_ERROR_FORMAT, "latin1.txt: byte 3 (line 1)");
  const char *inputs[] = {corpus_path("text.txt"), NULL};
  int calls = 0;
  choir_tokenizer_train_options o = CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT;
  o.inputs = inputs, o.output = out, o.vocab_size = 600, o.progress = stop, o.context = &calls;
  test_fails(choir_tokenizer_train(&o), CHOIR_ERROR_INTERRUPTED, "stopped");
  assert_int_not_equal(access(out, F_OK), 0);
}

/* Should a model change text all the same, encoding finds it. */
static void encoding_checks_that_text_comes_back(void **state) {
  int32_t *ids;
  size_t count;
  const char *text = "kato mire kato";
  test_ok(choir_tokenizer_encode(corpus_small, text, strlen(text), &ids, &count));
  int32_t id = ids[0];
  ch_surface kept = corpus_small->surface[id];
  free(ids);
  corpus_small->surface[id].text = "?????????";
  test_fails(choir_tokenizer_encode(corpus_small, text, strlen(text), &ids, &count), CHOIR_ERROR_FORMAT,
             "does not come back");
  corpus_small->surface[id] = (ch_surface){"", 0};
  test_fails(choir_tokenizer_encode(corpus_small, text, strlen(text), &ids, &count), CHOIR_ERROR_FORMAT,
             "does not come back");
  corpus_small->surface[id] = kept;
}

static void samples_evenly(void **state) {
  for (size_t blocks = 1; blocks < 5000; blocks = blocks * 3 + 1) {
    ch_sample s = {.limit = 10000};
    char text[100] = {0};
    for (size_t i = 0; i < blocks; i++) test_ok(ch_sample_add(&s, text, sizeof text));
    ch_sample_finish(&s);
    assert_int_equal(s.count, blocks < 100 ? blocks : 100);
    uint64_t widest = s.blocks[0].number;
    for (size_t i = 1; i < s.count; i++) {
      assert_true(s.blocks[i].number > s.blocks[i - 1].number);
      widest =
          widest > s.blocks[i].number - s.blocks[i - 1].number ? widest : s.blocks[i].number - s.blocks[i - 1].number;
    }
    assert_true(widest <= 3 * (blocks / s.count + 1));
    ch_sample_free(&s);
  }
}

TEST_MAIN(corpus_begin_small, corpus_end_small, keeps_every_text, keeps_random_text, keeps_long_runs,
          control_pieces_are_text, names_pieces, refuses_what_is_not_utf8, pieces_add_up, encodes_in_threads,
          long_texts_stop, every_type_keeps_text, keeps_spaces_that_are_rare, learns_around_reserved_characters,
          training_does_not_depend_on_threads, training_fails_clearly, encoding_checks_that_text_comes_back,
          samples_evenly)
