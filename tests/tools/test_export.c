/* choir export is made of these: values, rounding, the layout of GGUF files, tokenizers, refusals. That stock programs
 * compute the same from the result python/tests/test_export.py and lab/serving/check.py see. */
#include <endian.h>

#include "corpus.h"
#include "export/gguf.h"
#include "export/plan.h"
#include "file/json.h"

enum { COLUMNS = 64, ROWS = 50 };

/* Every value comes back within half a step of its block, whatever its size; what is 0 stays 0. */
static void rounds_in_blocks(void **state) {
  float row[COLUMNS], back[COLUMNS];
  char bytes[COLUMNS * 4];
  assert_int_equal(ch_export_row_bytes(CH_EXPORT_Q8_0, COLUMNS), 68);
  for (int r = 0; r < ROWS; r++) {
    test_normal(row, COLUMNS, (uint32_t)r);
    for (int i = 0; i < COLUMNS; i++) row[i] *= ldexpf(1, r - ROWS / 2);
    row[r % COLUMNS] = 0;
    ch_export_round(CH_EXPORT_Q8_0, row, COLUMNS, bytes);
    for (int i = 0; i < COLUMNS; i++) back[i] = ch_export_value(CHOIR_U8, bytes, i);
    for (int i = 0; i < COLUMNS; i++) {
      float max = 0;
      for (int k = i / 32 * 32; k < i / 32 * 32 + 32; k++) max = fmaxf(max, fabsf(row[k]));
      if (max / 127 > 65504) continue;                              /* more than a scale can be */
      double step = max / 127.0, lost = fmax(step / 2048, 0x1p-25); /* of the scale, by half precision */
      assert_true(fabs(back[i] - row[i]) <= 0.5001 * step + 127 * lost);
    }
    assert_true(back[r % COLUMNS] == 0);
    ch_export_round(CH_EXPORT_BF16, row, COLUMNS, bytes);
    for (int i = 0; i < COLUMNS; i++)
      assert_true(fabsf(ch_export_value(CHOIR_BF16, bytes, i) - row[i]) <= fabsf(row[i]) / 256);
  }
}

/* Scales are halves to the nearest: ggml's own bits. */
static void scales_are_halves(void **state) {
  static const struct {
    float scale;
    uint16_t bits;
  } cases[] = {{1, 0x3C00},   {0.5f, 0x3800},         {65504, 0x7BFF},        {0x1p-14f, 0x0400},
               {0x1p-24f, 1}, {0x1.ffep-15f, 0x0400}, {1 + 0x1p-11f, 0x3C00}, {1 + 0x1.8p-10f, 0x3C02},
               {0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    float row[32] = {127 * cases[i].scale};
    uint16_t bytes[17];
    ch_export_round(CH_EXPORT_Q8_0, row, 32, bytes);
    assert_int_equal(bytes[0], cases[i].bits);
  }
}

/* A router of two tokens and three experts, transposed, with two null experts. */
static void turns_and_fills(void **state) {
  const float weight[] = {1, 2, 3, 4, 5, 6}, expected[] = {1, 4, 2, 5, 3, 6, 0, 0, 0, 0};
  const choir_tensor from = {.dims = 2, .shape = {2, 3}, .data = weight};
  ch_export_tensor t = {.transform = CH_TRANSFORM_TRANSPOSE,
                        .from = &from,
                        .blocks = 1,
                        .source_blocks = 1,
                        .rows = 5,
                        .source_rows = 3,
                        .columns = 2,
                        .head = 1,
                        .factor = 1};
  float out[10];
  test_ok(ch_export_fill(&t, 0, out));
  assert_memory_equal(out, expected, sizeof out);

  const float heads[] = {0, 1, 2, 3, 10, 11, 12, 13}, pairs[] = {0, 2, 1, 3, 10, 12, 11, 13};
  const choir_tensor q = {.dims = 2, .shape = {8, 1}, .data = heads};
  t = (ch_export_tensor){.transform = CH_TRANSFORM_INTERLEAVE,
                         .from = &q,
                         .blocks = 1,
                         .source_blocks = 1,
                         .rows = 8,
                         .source_rows = 8,
                         .columns = 1,
                         .head = 4,
                         .factor = 2};
  test_ok(ch_export_fill(&t, 0, out));
  for (int i = 0; i < 8; i++) assert_true(out[i] == 2 * pairs[i]);

  const float broken[] = {1, NAN};
  const choir_tensor bad = {.dims = 1, .shape = {2}, .data = broken};
  t = (ch_export_tensor){.name = "norm",
                         .from = &bad,
                         .blocks = 1,
                         .source_blocks = 1,
                         .rows = 1,
                         .source_rows = 1,
                         .columns = 2,
                         .factor = 1};
  test_fails(ch_export_fill(&t, 0, out), CHOIR_ERROR_NUMERIC, "tensor 'norm'");
}

/* score + bias, in float as stock code adds, is above the null experts' 0 where a score reaches its threshold, and not
 * where it is two floats below. */
static void biases_are_thresholds(void **state) {
  enum { E = 1000 };
  float thresholds[E], out[E + 3];
  for (int i = 0; i < E; i++) thresholds[i] = 1 / (1 + expf(-8 * ((float)i / E - 0.5f)));
  const choir_tensor from = {.dims = 1, .shape = {E}, .data = thresholds};
  ch_export_tensor t = {.transform = CH_TRANSFORM_THRESHOLDS,
                        .from = &from,
                        .blocks = 1,
                        .source_blocks = 1,
                        .rows = 1,
                        .source_rows = 1,
                        .columns = E + 3,
                        .factor = 1};
  test_ok(ch_export_fill(&t, 0, out));
  for (int i = 0; i < E; i++) {
    float below = nextafterf(nextafterf(thresholds[i], 0), 0);
    assert_true(thresholds[i] + out[i] > 0);
    assert_true(below + out[i] <= 0);
  }
  for (int i = E; i < E + 3; i++) assert_true(0.5f + out[i] == 0);
  t.transform = CH_TRANSFORM_BIASES, t.columns = E;
  test_ok(ch_export_fill(&t, 0, out));
  for (int i = 0; i < E; i++) assert_true(out[i] == -thresholds[i]);
}

static uint64_t number_at(const char *data, size_t at, int bytes) {
  uint64_t value = 0;
  memcpy(&value, data + at, (size_t)bytes);
  return le64toh(value);
}

/* Header, one key, two tensors of 12 and 8 bytes, each at a multiple of 32. */
static void gguf_layout(void **state) {
  ch_gguf g = {0};
  const float first[] = {1, 2, 3}, second[] = {4, 5};
  ch_gguf_put_text(&g, "a.key", "text");
  ch_gguf_add_tensor(&g, "first", 2, (int64_t[]){1, 3}, 0, sizeof first);
  ch_gguf_add_tensor(&g, "second", 1, (int64_t[]){2}, 0, sizeof second);
  test_ok(ch_gguf_start(&g, corpus_path("small.gguf")));
  ch_gguf_write(&g, first, sizeof first);
  ch_gguf_end_tensor(&g);
  ch_gguf_write(&g, second, sizeof second);
  ch_gguf_end_tensor(&g);
  test_ok(ch_gguf_close(&g, CHOIR_OK));
  ch_buffer b = corpus_load(corpus_path("small.gguf"));
  assert_memory_equal(b.data, "GGUF", 4);
  assert_int_equal(number_at(b.data, 4, 4), 3);
  assert_int_equal(number_at(b.data, 8, 8), 2);
  assert_int_equal(number_at(b.data, 16, 8), 1);
  size_t tensors = 24 + (8 + 5) + 4 + (8 + 4);
  assert_memory_equal(b.data + tensors + 8, "first", 5);
  assert_int_equal(number_at(b.data, tensors + 13, 4), 2); /* dimensions, the fastest first: */
  assert_int_equal(number_at(b.data, tensors + 17, 8), 3);
  assert_int_equal(number_at(b.data, tensors + 25, 8), 1);
  size_t next = tensors + 13 + 4 + 16 + 4 + 8;
  assert_memory_equal(b.data + next + 8, "second", 6);
  assert_int_equal(number_at(b.data, next + 14 + 4 + 8 + 4, 8), 32); /* its offset */
  size_t data = (next + 14 + 4 + 8 + 4 + 8 + 31) / 32 * 32;
  assert_int_equal(b.size, data + 64);
  assert_memory_equal(b.data + data, first, sizeof first);
  assert_memory_equal(b.data + data + 32, second, sizeof second);
  free(b.data);
}

/* Gives up without a trace. */
static void failed_export_leaves_no_file(void **state) {
  ch_gguf g = {0};
  ch_gguf_put_flag(&g, "a.key", 1);
  test_ok(ch_gguf_start(&g, corpus_path("gone.gguf")));
  assert_int_equal(ch_gguf_close(&g, CHOIR_ERROR_NUMERIC), CHOIR_ERROR_NUMERIC);
  assert_int_not_equal(access(corpus_path("gone.gguf"), F_OK), 0);
}

static const json_t *member(const json_t *root, const char *a, const char *b) {
  return json_object_get(json_object_get(root, a), b);
}

/* Every piece has its number; merges give pieces of the vocabulary, those of better scores first. */
static void writes_tokenizers(void **state) {
  static const char *const types[] = {"bpe", "unigram", "char"};
  for (int i = 0; i < 3; i++) {
    const char *inputs[] = {corpus_path("text.txt"), NULL}, *piece = NULL;
    choir_tokenizer_train_options o = CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT;
    choir_tokenizer *t;
    json_t *root;
    size_t n, size;
    o.inputs = inputs, o.type = types[i], o.vocab_size = 500, o.output = corpus_path("t.model");
    test_ok(choir_tokenizer_train(&o));
    test_ok(choir_tokenizer_load(corpus_path("t.model"), &t));
    test_ok(ch_export_tokenizer(t, 64, corpus_home));
    test_ok(ch_json_load(corpus_path("tokenizer.json"), &root));
    const json_t *vocab = member(root, "model", "vocab"), *merge, *merges = member(root, "model", "merges");
    int last = choir_tokenizer_vocab_size(t) - 1;
    piece = ch_spm_piece(t->spm, last, &size);
    assert_int_equal(i == 1 ? json_array_size(vocab) : json_object_size(vocab), (size_t)last + 1);
    if (i == 1)
      assert_string_equal(json_string_value(json_array_get(json_array_get(vocab, (size_t)last), 0)), piece);
    else
      assert_int_equal(json_integer_value(json_object_get(vocab, piece)), last);
    float before = INFINITY;
    json_array_foreach(merges, n, merge) {
      char joined[256];
      snprintf(joined, sizeof joined, "%s%s", json_string_value(json_array_get(merge, 0)),
               json_string_value(json_array_get(merge, 1)));
      const json_t *id = json_object_get(vocab, joined);
      assert_non_null(id);
      float score = ch_spm_score(t->spm, (int)json_integer_value(id));
      assert_true(score <= before);
      before = score;
    }
    assert_true(i == 0 ? n > 100 : n == 0);
    json_decref(root);
    choir_tokenizer_free(t);
  }
}

/* Of a model that choir trained no text begins with a token that other programs would add; else nothing is changed. */
static void leaves_post_processors_out(void **state) {
  static const char *const post[] = {
      "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": false, \"use_regex\": true}", "null",
      "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<|endoftext|>\", \"type_id\": "
      "0}}]}",
      "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, {\"type\": \"TemplateProcessing\"}]}"};
  json_t *vectors, *root;
  test_ok(ch_json_load(CHOIR_SOURCE_DIR "/tests/vectors/byte_level.json", &vectors));
  json_t *file = json_object_get(json_object_get(vectors, "gpt2"), "file");
  for (int i = 0; i < 4; i++) {
    choir_tokenizer *t;
    json_object_set_new(file, "post_processor", json_loads(post[i], JSON_DECODE_ANY, NULL));
    char *text = json_dumps(file, JSON_COMPACT);
    test_ok(ch_tokenizer_of(text, strlen(text), NULL, "odd.json", &t));
    choir_notices();
    test_ok(ch_export_tokenizer(t, 64, corpus_home));
    assert_int_equal(strstr(choir_notices(), "its post_processor puts tokens around every text") != NULL, i > 1);
    ch_buffer saved = corpus_load(corpus_path("tokenizer.json"));
    if (i < 2) assert_true(saved.size == t->size && !memcmp(saved.data, t->bytes, t->size));
    if (i > 1) json_object_set_new(file, "post_processor", json_null());
    test_ok(ch_json_load(corpus_path("tokenizer.json"), &root));
    assert_true(json_equal(root, file));
    free(saved.data);
    json_decref(root);
    choir_tokenizer_free(t);
  }
  json_decref(vectors);
}

TEST_MAIN(corpus_begin, corpus_end, rounds_in_blocks, scales_are_halves, turns_and_fills, biases_are_thresholds,
          gguf_layout, failed_export_leaves_no_file, writes_tokenizers, leaves_post_processors_out)
