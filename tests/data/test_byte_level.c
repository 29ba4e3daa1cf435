/* Byte-level BPE: the ids that Hugging Face's tokenizers gives (tests/vectors/make_byte_level.py), refusals by name. */
#include <endian.h>

#include "choir/data.h"
#include "corpus.h"
#include "data/bpe_read.h"
#include "export/gguf_read.h"

static json_t *vectors;

static int begin(void **state) {
  return corpus_begin(state) || ch_json_load(CHOIR_SOURCE_DIR "/tests/vectors/byte_level.json", &vectors);
}

static int end(void **state) {
  json_decref(vectors);
  return corpus_end(state);
}

static json_t *file_of(const char *family) { return json_object_get(json_object_get(vectors, family), "file"); }

static int load(const json_t *file, choir_tokenizer **t) {
  char *text = json_dumps(file, JSON_COMPACT);
  return ch_tokenizer_of(text, strlen(text), NULL, "odd.json", t);
}

static void has_tokens(const choir_tokenizer *t, const json_t *text, const json_t *wanted) {
  int32_t *ids;
  size_t count;
  test_ok(choir_tokenizer_encode(t, json_string_value(text), json_string_length(text), &ids, &count));
  assert_int_equal(count, json_array_size(wanted));
  for (size_t k = 0; k < count; k++) assert_int_equal(ids[k], json_integer_value(json_array_get(wanted, k)));
  free(ids);
}

static void gives_the_same_ids(void **state) {
  const char *family;
  json_t *one;
  json_object_foreach(vectors, family, one) {
    choir_tokenizer *t;
    const json_t *text;
    size_t i;
    test_ok(load(file_of(family), &t));
    json_array_foreach(json_object_get(one, "texts"), i, text) {
      has_tokens(t, text, json_array_get(json_object_get(one, "ids"), i));
      if (!t->bpe->words.nfc) corpus_round_trip(t, json_string_value(text), json_string_length(text));
    }
    assert_true(i > 40);
    choir_tokenizer_free(t);
  }
}

/* A long text is encoded piece by piece, and with a memory of words: as if it were not. */
static void long_texts_give_the_same(void **state) {
  const char *family;
  json_t *one;
  json_object_foreach(vectors, family, one) {
    const json_t *texts = json_object_get(one, "texts");
    choir_tokenizer *t;
    ch_buffer text = {0};
    ch_ids whole = {0};
    int32_t *ids;
    size_t count;
    test_ok(load(file_of(family), &t));
    for (size_t i = 0; text.size < 400000; i++)
      corpus_add(&text, json_string_value(json_array_get(texts, i % json_array_size(texts))));
    test_ok(ch_encode(t, NULL, text.data, text.size, &whole));
    test_ok(choir_tokenizer_encode(t, text.data, text.size, &ids, &count));
    assert_int_equal(count, whole.count);
    assert_memory_equal(ids, whole.ids, count * sizeof *ids);
    free(ids);
    free(whole.ids);
    free(text.data);
    choir_tokenizer_free(t);
  }
}

/* More than the ten million steps that a search of PCRE2 may take unless told otherwise. */
static void long_runs_of_spaces_are_cut(void **state) {
  enum { MANY = 11000000 };
  choir_tokenizer *t;
  char *text = malloc(MANY);
  memset(text, '\t', MANY);
  text[MANY - 1] = 'x';
  test_ok(load(file_of("llama3"), &t));
  corpus_round_trip(t, text, MANY);
  free(text);
  choir_tokenizer_free(t);
}

/* Blocks of data are cut where no word reaches over. */
static void data_have_the_tokens_of_the_whole(void **state) {
  enum { HEADER = 128 };
  choir_tokenizer *t;
  ch_ids whole = {0};
  ch_buffer text = {0};
  const json_t *texts = json_object_get(json_object_get(vectors, "qwen"), "texts");
  for (size_t i = 0; text.size < 400000; i++) {
    corpus_add(&text, json_string_value(json_array_get(texts, i % json_array_size(texts))));
    corpus_add(&text, i % 3 ? ".\n" : "!\n\n a");
  }
  corpus_save(corpus_path("long.txt"), text.data, text.size);
  test_ok(load(file_of("qwen"), &t));
  corpus_save(corpus_path("qwen.json"), t->bytes, t->size);
  test_ok(ch_encode(t, NULL, text.data, text.size, &whole));
  const char *inputs[] = {corpus_path("long.txt"), NULL};
  choir_data_build_options o = CHOIR_DATA_BUILD_OPTIONS_INIT;
  o.sources = &(choir_data_source){.name = "long", .inputs = inputs}, o.source_count = 1;
  o.tokenizer = corpus_path("qwen.json"), o.output = corpus_path("data"), o.holdout = 0, o.threads = 2;
  test_ok(choir_data_build(&o));
  ch_buffer shard = corpus_load(corpus_path("data/long.train.shard"));
  assert_int_equal(shard.size, HEADER + 2 * (whole.count + 1)); /* and the end of the text */
  for (size_t i = 0; i < whole.count; i++) {
    uint16_t id;
    memcpy(&id, shard.data + HEADER + 2 * i, sizeof id);
    assert_int_equal(le16toh(id), whole.ids[i]);
  }
  free(shard.data);
  free(whole.ids);
  free(text.data);
  choir_tokenizer_free(t);
}

/* Text that takes time by the square of its length, or memory for each step back, where an engine is careless. */
static void takes_hostile_texts(void **state) {
  static const char *const units[] = {"a", " ", "\n", " \n", ".", "1", "\xCC\x81\xCC\xA7", "\xE4\xB8\xAD"};
  const char *family;
  json_t *one;
  json_object_foreach(vectors, family, one) {
    choir_tokenizer *t;
    test_ok(load(file_of(family), &t));
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
      ch_buffer text = {0};
      int32_t *ids;
      size_t count;
      while (text.size < 500000) corpus_add(&text, units[u]);
      test_ok(choir_tokenizer_encode(t, text.data, text.size, &ids, &count));
      free(ids);
      free(text.data);
    }
    choir_tokenizer_free(t);
  }
}

/* The file of GPT-2's kind with another value at KEY or KEY.KEY. */
static void refuses(int code, const char *key, const char *value, const char *says) {
  json_t *file = json_deep_copy(file_of("gpt2")), *at = file;
  const char *dot = strchr(key, '.');
  choir_tokenizer *t;
  if (dot) at = json_object_get(file, "model"), key = dot + 1;
  json_t *other = json_loads(value, JSON_DECODE_ANY, NULL);
  assert_non_null(other);
  json_object_set_new(at, key, other);
  test_fails(load(file, &t), code, says);
  json_decref(file);
}

/* What cuts or fills whole texts, and what has no effect, changes no token. */
static void takes_what_changes_no_token(void **state) {
  static const char text[] = "It's 2025: caf\xC3\xA9,  and so on";
  json_t *file = json_deep_copy(file_of("gpt2")), *model = json_object_get(file, "model");
  choir_tokenizer *t;
  int32_t *plain, *ids;
  size_t count[2];
  test_ok(load(file, &t));
  test_ok(choir_tokenizer_encode(t, text, sizeof text - 1, &plain, &count[0]));
  choir_tokenizer_free(t);
  json_object_set_new(file, "truncation", json_pack("{s:i}", "max_length", 5));
  json_object_set_new(file, "padding", json_pack("{s:i}", "pad_id", 0));
  json_object_set_new(model, "dropout", json_real(0));
  json_array_insert_new(json_object_get(model, "merges"), 0, json_string("#version: 0.2"));
  test_ok(load(file, &t));
  test_ok(choir_tokenizer_encode(t, text, sizeof text - 1, &ids, &count[1]));
  assert_int_equal(count[0], count[1]);
  assert_memory_equal(plain, ids, count[0] * sizeof *ids);
  choir_tokenizer_free(t);
  json_decref(file);
  free(plain), free(ids);
}

static void refuses_other_rules(void **state) {
  choir_tokenizer *t;
  refuses(CHOIR_ERROR_UNSUPPORTED, "normalizer", "{\"type\": \"NFKC\"}", "odd.json: normalizer is {");
  refuses(CHOIR_ERROR_UNSUPPORTED, "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}",
          "\"add_prefix_space\" must be");
  refuses(CHOIR_ERROR_UNSUPPORTED, "pre_tokenizer",
          "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}",
          "its rule for words is none of those");
  refuses(CHOIR_ERROR_UNSUPPORTED, "pre_tokenizer", "{\"type\": \"Metaspace\"}", "not of byte-level BPE");
  refuses(CHOIR_ERROR_UNSUPPORTED, "model.dropout", "0.1", "model.dropout is 0.1");
  refuses(CHOIR_ERROR_UNSUPPORTED, "model.byte_fallback", "true", "model.byte_fallback is true");
  refuses(CHOIR_ERROR_UNSUPPORTED, "model.type", "\"WordPiece\"", "model.type is \"WordPiece\"");
  refuses(CHOIR_ERROR_UNSUPPORTED, "model.merges", "[\"a b c\"]", "is no pair of tokens");
  refuses(CHOIR_ERROR_UNSUPPORTED, "model.merges", "[\"a \xE2\x99\xA5\"]", "not in the vocabulary");
  refuses(CHOIR_ERROR_UNSUPPORTED, "added_tokens", "[]", "choir tokenizer import --eos ID");
  refuses(CHOIR_ERROR_UNSUPPORTED, "added_tokens", "[{\"id\": 9, \"content\": \"<x>\"}]",
          "must be numbered in their order");
  refuses(CHOIR_ERROR_FORMAT, "extra", "1", "unknown key 'extra'");
  json_t *file = json_deep_copy(file_of("gpt2")), *first = json_array_get(json_object_get(file, "added_tokens"), 0);
  json_object_set_new(first, "lstrip", json_true());
  test_fails(load(file, &t), CHOIR_ERROR_UNSUPPORTED, "single_word, lstrip and rstrip must be false");
  json_object_set_new(first, "lstrip", json_false());
  json_object_set_new(first, "content", json_string("<|end of text|>"));
  json_object_set_new(file, "choir", json_pack("{s:i}", "eos", 400));
  test_fails(load(file, &t), CHOIR_ERROR_UNSUPPORTED, "a space after another character");
  json_t *vocab = json_object_get(json_object_get(file, "model"), "vocab");
  json_array_set_new(json_object_get(file, "added_tokens"), 0,
                     json_deep_copy(json_array_get(json_object_get(file_of("gpt2"), "added_tokens"), 0)));
  for (int b = 0; b < 13; b++) { /* UTF-8 never has these bytes, so their tokens may differ */
    char old[3], spare[8];
    int byte = b < 2 ? 0xC0 + b : 0xF3 + b;
    old[0] = (char)(0xC0 | byte >> 6), old[1] = (char)(0x80 | (byte & 63)), old[2] = 0;
    snprintf(spare, sizeof spare, "!!!%d", b);
    assert_non_null(json_object_get(vocab, old));
    json_object_set(vocab, spare, json_object_get(vocab, old));
    json_object_del(vocab, old);
  }
  test_ok(load(file, &t));
  corpus_round_trip(t, "caf\xC3\xA9 \xF4\x8F\xBF\xBF", 10);
  choir_tokenizer_free(t);
  json_object_set(vocab, "!!!!", json_object_get(vocab, "!"));
  json_object_del(vocab, "!");
  test_fails(load(file, &t), CHOIR_ERROR_FORMAT, "no token for byte 0x21");
  json_decref(file);
}

/* Removed with invert keeps the pattern's matches: the ids are those of Isolated where it is the rule's only pattern.
 */
static void split_by_what_is_kept(void **state) {
  static const struct {
    const char *family, *behavior;
    int invert, taken;
  } cases[] = {
      {"qwen", "Removed", 1, 1}, {"qwen", "Removed", 0, 0}, {"qwen", "Isolated", 1, 0}, {"deepseek", "Removed", 1, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *one = json_object_get(vectors, cases[i].family), *file = json_deep_copy(json_object_get(one, "file"));
    json_t *step = json_array_get(json_object_get(json_object_get(file, "pre_tokenizer"), "pretokenizers"), 0);
    const json_t *text = json_array_get(json_object_get(one, "texts"), 0);
    choir_tokenizer *t;
    assert_non_null(step);
    json_object_set_new(step, "behavior", json_string(cases[i].behavior));
    json_object_set_new(step, "invert", json_boolean(cases[i].invert));
    if (!cases[i].taken) {
      test_fails(load(file, &t), CHOIR_ERROR_UNSUPPORTED, "its rule for words is none of those");
    } else {
      test_ok(load(file, &t));
      has_tokens(t, text, json_array_get(json_object_get(one, "ids"), 0));
      choir_tokenizer_free(t);
    }
    json_decref(file);
  }
}

/* A pair that waited when one of its two merged with another does not lend its rank to the pair that then stands there.
 */
static void stale_pairs(void **state) {
  static const char *const made[] = {"bc", "ab", "bcd", "abc"};
  json_t *file = json_deep_copy(file_of("gpt2")), *model = json_object_get(file, "model");
  json_t *vocab = json_object_get(model, "vocab"), *id;
  const char *token;
  void *next;
  choir_tokenizer *t;
  int32_t *ids;
  size_t count;
  json_object_foreach_safe(vocab, next, token, id) if (json_integer_value(id) >= 256 && json_integer_value(id) < 260)
      json_object_del(vocab, token);
  for (int i = 0; i < 4; i++) json_object_set_new(vocab, made[i], json_integer(256 + i));
  json_object_set_new(model, "merges", json_pack("[s, s, s, s]", "b c", "a b", "bc d", "a bc"));
  test_ok(load(file, &t));
  test_ok(choir_tokenizer_encode(t, "abcd", 4, &ids, &count));
  assert_int_equal(count, 2);
  assert_string_equal(choir_tokenizer_piece(t, ids[1]), "bcd");
  free(ids);
  choir_tokenizer_free(t);
  json_object_set_new(file, "choir", json_pack("{s:i}", "eos", 401)); /* of 401 tokens */
  test_fails(load(file, &t), CHOIR_ERROR_FORMAT, "\"eos\"");
  json_object_set_new(file, "choir", json_pack("{s:i}", "tokens", 400));
  test_fails(load(file, &t), CHOIR_ERROR_FORMAT, "\"tokens\"");
  json_decref(file);
}

/* The end of a text and the size of the model's vocabulary are noted in front; without the note the bytes are back. */
static void keeps_the_file(void **state) {
  char *text = json_dumps(file_of("qwen"), JSON_INDENT(2));
  size_t size = strlen(text);
  ch_buffer noted = {0}, twice = {0}, plain = {0};
  choir_tokenizer *t;
  test_ok(ch_bpe_note(text, size, 401, 0, &noted));
  test_ok(ch_bpe_note(noted.data, noted.size, 401, 512, &twice));
  test_ok(ch_bpe_plain(twice.data, twice.size, &plain));
  assert_int_equal(plain.size, size);
  assert_memory_equal(plain.data, text, size);
  test_ok(ch_tokenizer_of(twice.data, twice.size, NULL, "noted", &t));
  assert_int_equal(choir_tokenizer_eos(t), 401);
  assert_int_equal(choir_tokenizer_vocab_size(t), 512);
  assert_string_equal(choir_tokenizer_piece(t, 401), "<|im_end|>");
  assert_string_equal(choir_tokenizer_piece(t, 511), "[PAD511]");
  assert_string_equal(choir_tokenizer_piece(t, t->bpe->byte_id[0xE2]), "<0xE2>");
  assert_int_equal(t->surface[511].size, 0);
  choir_tokenizer_free(t);
  free(noted.data);
  free(plain.data);
  free(text);
}

/* A GGUF file's vocabulary is read as the same tokenizer; what llama.cpp has no name for is not written. */
static void goes_through_gguf(void **state) {
  const char *family;
  json_t *one;
  json_object_foreach(vectors, family, one) {
    choir_tokenizer *t, *back;
    ch_gguf g = {0};
    ch_gguf_in in;
    ch_buffer model = {0};
    test_ok(load(file_of(family), &t));
    test_ok(ch_gguf_put_tokenizer(&g, t, 0, &(ch_imported){.bos = -1, .eos = -1}));
    ch_gguf_add_tensor(&g, "x", 1, (int64_t[]){8}, 0, sizeof(float[8]));
    int code = ch_gguf_start(&g, corpus_path("x.gguf"));
    ch_gguf_write(&g, (float[8]){1}, sizeof(float[8]));
    ch_gguf_end_tensor(&g);
    test_ok(ch_gguf_close(&g, code));
    test_ok(ch_gguf_open(corpus_path("x.gguf"), &in));
    test_ok(ch_gguf_tokenizer(&in, "x.gguf", &model));
    test_ok(ch_tokenizer_of(model.data, model.size, NULL, "back", &back));
    assert_int_equal(back->eos, t->eos);
    assert_int_equal(back->vocab, t->vocab);
    assert_ptr_equal(back->bpe->words.cutting, t->bpe->words.cutting);
    for (int i = 0; i < t->vocab; i++) assert_string_equal(back->piece[i], t->piece[i]);
    back->bpe->words.nfc = t->bpe->words.nfc; /* which such files do not say */
    const json_t *text;
    size_t k, count, counts;
    json_array_foreach(json_object_get(one, "texts"), k, text) {
      int32_t *ids, *again;
      test_ok(choir_tokenizer_encode(t, json_string_value(text), json_string_length(text), &ids, &count));
      test_ok(choir_tokenizer_encode(back, json_string_value(text), json_string_length(text), &again, &counts));
      assert_int_equal(count, counts);
      assert_memory_equal(ids, again, count * sizeof *ids);
      free(ids);
      free(again);
    }
    ch_gguf_close_in(&in);
    choir_tokenizer_free(back);
    choir_tokenizer_free(t);
  }
  json_t *file = json_deep_copy(file_of("qwen"));
  json_object_set_new(json_object_get(file, "model"), "ignore_merges", json_true());
  choir_tokenizer *t;
  ch_gguf g = {0};
  test_ok(load(file, &t));
  test_fails(ch_gguf_close(&g, ch_gguf_put_tokenizer(&g, t, 0, &(ch_imported){.bos = -1, .eos = -1})),
             CHOIR_ERROR_UNSUPPORTED, "\"ignore_merges\"");
  choir_tokenizer_free(t);
  json_decref(file);
}

/* A token whose text is a space by itself is not that of the space, which is spelled U+0120. */
static void spells_by_the_alphabet(void **state) {
  json_t *file = json_deep_copy(file_of("gpt2")), *vocab = json_object_get(json_object_get(file, "model"), "vocab");
  json_int_t space = json_integer_value(json_object_get(vocab, "\xC4\xA0"));
  json_object_set_new(json_object_get(file, "model"), "ignore_merges", json_true());
  json_object_set_new(vocab, " ", json_integer(400));
  json_object_set_new(json_array_get(json_object_get(file, "added_tokens"), 0), "id", json_integer(401));
  choir_tokenizer *t;
  int32_t *ids;
  size_t count;
  test_ok(load(file, &t));
  test_ok(choir_tokenizer_encode(t, " ", 1, &ids, &count));
  assert_int_equal(count, 1);
  assert_int_equal(ids[0], space);
  free(ids);
  choir_tokenizer_free(t);
  json_decref(file);
}

TEST_MAIN(begin, end, gives_the_same_ids, long_texts_give_the_same, long_runs_of_spaces_are_cut,
          data_have_the_tokens_of_the_whole, takes_hostile_texts, split_by_what_is_kept, takes_what_changes_no_token,
          refuses_other_rules, stale_pairs, keeps_the_file, goes_through_gguf, spells_by_the_alphabet)
