/* SentencePiece models of others: those that keep every text are taken, and others refused by field and value. */
#include "choir/data.h"
#include "corpus.h"

static int load(const void *bytes, size_t size) {
  choir_tokenizer *t;
  corpus_save(corpus_path("odd.model"), bytes, size);
  int code = choir_tokenizer_load(corpus_path("odd.model"), &t);
  choir_tokenizer_free(t);
  return code;
}

/* The place of a byte string in the model file. */
static char *find(ch_buffer *model, const char *bytes, size_t size) {
  char *place = memmem(model->data, model->size, bytes, size);
  assert_non_null(place);
  return place;
}

static void refuses_other_models(void **state) {
  choir_tokenizer *t;
  ch_buffer model = corpus_load(corpus_path("small.model"));
  test_fails(choir_tokenizer_load(corpus_path("none.model"), &t), CHOIR_ERROR_IO, "none.model");
  test_fails(load("", 0), CHOIR_ERROR_FORMAT, "odd.model");
  test_fails(load("kato mire", 9), CHOIR_ERROR_FORMAT, "odd.model");
  test_fails(load(model.data, model.size / 2), CHOIR_ERROR_FORMAT, "odd.model");
  int id = 300;
  while (corpus_small->surface[id].size != 5 || memchr(corpus_small->surface[id].text, ' ', 5)) id++;
  memcpy(find(&model, corpus_small->surface[id].text, 5), "a\xE2\x96\x81z", 5);
  test_fails(load(model.data, model.size), CHOIR_ERROR_FORMAT, "reaches over the end of a word");
  free(model.data);
}

/* The model's file with more bytes behind it: a protocol buffer's fields that come twice are merged. */
static int load_with(const char *more, size_t size) {
  ch_buffer model = corpus_load(corpus_path("small.model"));
  test_ok(ch_buffer_append(&model, more, size));
  int code = load(model.data, model.size);
  free(model.data);
  return code;
}
#define LOAD_WITH(more) load_with(more, sizeof(more) - 1)

/* By what the file says of itself, and not by a text that happens to show it. */
static void refuses_models_that_change_text(void **state) {
  choir_tokenizer *t;
  test_fails(choir_tokenizer_load(CHOIR_SOURCE_DIR "/tests/vectors/changes_text.model", &t), CHOIR_ERROR_FORMAT,
             "changes_text.model: normalizer_spec.name is \"user_defined\": the model changes text"); /* q becomes Q */
  test_ok(LOAD_WITH(""));
  test_ok(LOAD_WITH("\x1A\x02\x18\x00"));
  test_ok(LOAD_WITH("\x22\x0A\x0A\x08\x0A\x01k\x12\x03k a")); /* of a sample that is encoded with other settings */
  test_fails(LOAD_WITH("\x1A\x05\x12\x03xyz"), CHOIR_ERROR_FORMAT, "normalization map");
  test_fails(LOAD_WITH("\x1A\x05\x12\x03xyz\x1A\x02\x12\x00"), CHOIR_ERROR_FORMAT, "normalization map");
  test_fails(LOAD_WITH("\x2A\x05\x12\x03xyz"), CHOIR_ERROR_FORMAT, "a map for decoding");
  test_fails(LOAD_WITH("\x1A\x0A\x0A\x08nmt_nfkc\x1A\x05\x12\x03xyz"), CHOIR_ERROR_FORMAT,
             "normalizer_spec.name is \"nmt_nfkc\": the model changes text by a normalization map of 3 bytes; train it "
             "with --normalization_rule_name=identity --byte_fallback=true");
  test_fails(LOAD_WITH("\x1A\x02\x28\x00"), CHOIR_ERROR_FORMAT, "normalizer_spec.escape_whitespaces is false");
  test_fails(LOAD_WITH("\x12\x03\xC0\x01\x01"), CHOIR_ERROR_FORMAT, "trainer_spec.treat_whitespace_as_suffix is true");
  test_fails(LOAD_WITH("\x12\x03\x98\x02\x00"), CHOIR_ERROR_FORMAT, "trainer_spec.byte_fallback is false");
  test_fails(LOAD_WITH("\x12\x02\x18\x03"), CHOIR_ERROR_FORMAT, "trainer_spec.model_type is word");
  test_fails(LOAD_WITH("\x1A\x7F"), CHOIR_ERROR_FORMAT, "not a SentencePiece model");
  test_fails(LOAD_WITH("\x1B\x1C"), CHOIR_ERROR_FORMAT, "not a SentencePiece model"); /* a group hides nothing */
  test_fails(LOAD_WITH("\x12\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"), CHOIR_ERROR_FORMAT,
             "not a SentencePiece model");
}

/* Models as others train them (vectors/make_foreign.py) keep every text, and give SentencePiece's own tokens of a line;
 * the space that three of them put in front of it stands in the text here. */
static void takes_models_of_others(void **state) {
  static const struct {
    const char *name;
    size_t count;
    int32_t ids[41];
  } others[] = {
      {"unigram", 38, {259, 320, 297, 270, 259, 287, 266, 284, 270, 286, 262, 270, 272, 259, 301, 285, 269, 322, 263,
                       259, 332, 298, 298, 325, 259, 311, 282, 259, 322, 273, 297, 198, 172, 272, 269, 282, 279, 265}},
      {"char", 41, {259, 294, 269, 260, 259, 271, 262, 268, 260, 264, 267, 260, 270, 259,
                    280, 263, 265, 282, 259, 263, 273, 259, 310, 307, 307, 319, 259, 297,
                    266, 259, 282, 266, 261, 269, 198, 172, 270, 265, 266, 298, 283}},
      {"llama", 40, {270, 305, 280, 271, 270, 282, 273, 279, 271, 275, 278, 271, 281, 270,
                     291, 262, 293, 270, 274, 284, 270, 321, 318, 318, 330, 270, 308, 277,
                     270, 293, 277, 272, 280, 198, 172, 281, 276, 277, 309, 294}},
      {"gemma", 38, {305, 280, 271, 270, 282, 273, 279, 271, 275, 278, 271, 281, 270, 291, 266, 293, 270, 274, 284,
                     270, 321, 318, 318, 330, 270, 308, 277, 270, 293, 277, 267, 203, 177, 281, 276, 277, 309, 294}}};
  static const char line[] =
      " The licensed work of 2004 (a kath\xC3\xA9"
      "dra).";
  static const char odd[] =
      "  a  b \n\n\t \r\n <mask> </s> <0x0A>\xE2\x96\x81x \xEF\xAC\x81 e\xCC\x81 \xF4\x8F\xBF\xBD \n";
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    char path[256];
    choir_tokenizer *t;
    int32_t *ids;
    size_t count, own_space = strcmp(others[i].name, "gemma") != 0;
    snprintf(path, sizeof path, CHOIR_SOURCE_DIR "/tests/vectors/foreign/%s.model", others[i].name);
    test_ok(choir_tokenizer_load(path, &t));
    test_ok(choir_tokenizer_encode(t, line + !own_space, sizeof line - 1 - !own_space, &ids, &count));
    assert_int_equal(count, others[i].count);
    assert_memory_equal(ids, others[i].ids, count * sizeof *ids);
    free(ids);
    corpus_round_trip(t, odd, sizeof odd - 1);
    corpus_round_trip(t, line + 1, sizeof line - 2);
    choir_tokenizer_free(t);
  }
}

/* Mistral's have pieces like ";\r", Gemma's "\n\n": these are used as SentencePiece uses them. Other control characters
 * are bytes. */
static void joins_control_characters(void **state) {
  static const int32_t expected[] = {295, 266, 293, 5, 270, 274, 284, 4, 267, 271, 21, 4, 264, 310};
  static const char text[] = "Work\n\n of\nthe\r\n  x";
  choir_tokenizer *t;
  int32_t *ids;
  size_t count;
  test_ok(choir_tokenizer_load(CHOIR_SOURCE_DIR "/tests/vectors/foreign/gemma.model", &t));
  test_ok(choir_tokenizer_encode(t, text, sizeof text - 1, &ids, &count));
  assert_int_equal(count, sizeof expected / sizeof *expected);
  assert_memory_equal(ids, expected, sizeof expected);
  free(ids);
  choir_tokenizer_free(t);
  static const char unigram[] = CHOIR_SOURCE_DIR "/tests/vectors/foreign/unigram.model";
  ch_buffer model = corpus_load(unigram);
  memcpy(find(&model, "\xE2\x96\x81You", 6), "\xE2\x96\x81);\r", 6);
  corpus_save(corpus_path("odd.model"), model.data, model.size);
  free(model.data);
  test_ok(choir_tokenizer_load(corpus_path("odd.model"), &t));
  test_ok(choir_tokenizer_encode(t, " );\r\n", 5, &ids, &count));
  assert_int_equal(count, 2);
  assert_int_equal(ids[0], 271);
  assert_int_equal(ids[1], t->byte_id['\n']);
  free(ids);
  choir_tokenizer_free(t);
}

/* A block of data that ends between two line ends would cut the piece of both. */
static void data_have_the_pieces_of_the_whole(void **state) {
  enum { HEADER = 128 };
  static const char gemma[] = CHOIR_SOURCE_DIR "/tests/vectors/foreign/gemma.model";
  choir_tokenizer *t;
  ch_ids whole = {0};
  ch_buffer text = {0};
  while (text.size < 1000000) corpus_add(&text, "Work of the\n\n of\nthe x\n\n\n");
  corpus_save(corpus_path("lines.txt"), text.data, text.size);
  test_ok(choir_tokenizer_load(gemma, &t));
  test_ok(ch_encode(t, NULL, text.data, text.size, &whole));
  const char *inputs[] = {corpus_path("lines.txt"), NULL};
  choir_data_build_options o = CHOIR_DATA_BUILD_OPTIONS_INIT;
  o.sources = &(choir_data_source){.name = "lines", .inputs = inputs}, o.source_count = 1;
  o.tokenizer = gemma, o.output = corpus_path("lines"), o.holdout = 0, o.threads = 2;
  test_ok(choir_data_build(&o));
  ch_buffer shard = corpus_load(corpus_path("lines/lines.train.shard"));
  assert_int_equal(shard.size, HEADER + 2 * (whole.count + 1)); /* and the end of the text */
  free(shard.data);
  free(whole.ids);
  free(text.data);
  choir_tokenizer_free(t);
}

/* What stands behind a NUL in a piece is its own, and not the next one's. */
static void keeps_a_nul_in_a_piece(void **state) {
  static const char unigram[] = CHOIR_SOURCE_DIR "/tests/vectors/foreign/unigram.model";
  choir_tokenizer *t;
  char *text;
  size_t size;
  ch_buffer model = corpus_load(unigram);
  memcpy(find(&model, "\xE2\x96\x81You", 6), "\xE2\x96\x81Y\0u", 6);
  corpus_save(corpus_path("odd.model"), model.data, model.size);
  free(model.data);
  test_ok(choir_tokenizer_load(corpus_path("odd.model"), &t));
  test_ok(choir_tokenizer_decode(t, (int32_t[]){271}, 1, &text, &size));
  assert_int_equal(size, 4);
  assert_memory_equal(text, " Y\0u", 4);
  free(text);
  choir_tokenizer_free(t);
}

TEST_MAIN(corpus_begin_small, corpus_end_small, refuses_other_models, refuses_models_that_change_text,
          takes_models_of_others, joins_control_characters, data_have_the_pieces_of_the_whole, keeps_a_nul_in_a_piece)
