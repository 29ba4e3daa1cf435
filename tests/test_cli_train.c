/* The program's whole path: text, tokenizer, data, training, evaluation, report. Interruptions: test_resume.c. */

#include "base/file.h"
#include "choir/choir.h"
#include "cli.h"

/* Documents of made-up words: common ones often, and each word depends on the last, so that there is something to
 * learn. */
static void write_corpus(const char *path) {
  ch_rng r = ch_rng_make(11, CH_STREAM_TEST, 5);
  uint64_t at = 0, word = 0;
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  for (int i = 0; i < 40000; i++) {
    double u = ch_rng_uniform(r, at++);
    word = (word * 7 + (uint64_t)(200 * u * u * u)) % 200;
    for (uint64_t w = word + 11; w; w /= 12) fprintf(file, "%c%c", "ptkbdgmnslrv"[w % 12], "aeiou"[w % 5]);
    fputs(i % 100 == 99 ? "\n%%\n" : i % 10 == 9 ? ".\n" : " ", file);
  }
  fclose(file);
}

static int setup(void **state) {
  if (program_setup(state)) return -1;
  write_corpus(program_path("text"));
  if (program("tokenizer train --out t.model --vocab-size 400 --separator %%%% text") ||
      program("data build --out data --tokenizer t.model --separator %%%% --holdout 0.05 text")) {
    fprintf(stderr, "%s", program_output);
    return -1;
  }
  return 0;
}

#define TRAIN                                                                                       \
  "train --data data --config " CHOIR_SOURCE_DIR                                                    \
  "/configs/pico.json --set vocab_size=400 --set sequence_length=32 --set batch_sequences=4 --set " \
  "eval_every=4 --set eval_sequences=4 --set checkpoint_every=3 --set keep_checkpoints=2 "

static void train_and_look(void **state) {
  (void)state;
  program_ok(TRAIN "--out run --set steps=8");
  assert_non_null(strstr(program_output, "done: 8 steps"));
  assert_non_null(strstr(program_output, "held-out loss"));
  program_refuses(1, "resume", TRAIN "--out run --set steps=8");
  program_refuses(1, "nowhere", "train --out r2 --data nowhere --config %s/configs/pico.json", CHOIR_SOURCE_DIR);

  program_ok("eval run --data data --json");
  json_t *root = program_json(), *layers = json_object_get(root, "layers"), *layer;
  double loss = json_at(root, "loss"), bits = loss * json_at(root, "tokens") / json_at(root, "bytes") / log(2);
  size_t l;
  if (!(fabs(json_at(root, "perplexity") / exp(loss) - 1) < 1e-9)) fail_msg("perplexity is not exp(loss)");
  if (!(fabs(json_at(root, "bits_per_byte") / bits - 1) < 0.01))
    fail_msg("bits per byte %g, not %g", json_at(root, "bits_per_byte"), bits);
  assert_string_equal(json_string_value(json_object_get(root, "routing")), "batch");
  assert_true(json_is_true(json_object_get(root, "looks_across_tokens")));
  assert_int_equal(json_array_size(layers), 2);
  json_array_foreach(layers, l, layer) {
    int64_t tokens = 0, held = 0;
    for (size_t i = 0; i < 33; i++) {
      int64_t count = json_integer_value(json_array_get(json_object_get(layer, "histogram"), i));
      tokens += count;
      held += count * (int64_t)i;
    }
    assert_int_equal(tokens, (int64_t)json_at(layer, "tokens"));
    assert_int_equal(held, (int64_t)json_at(layer, "assignments"));
  }
  json_decref(root);
  program_ok("eval run --text text --sequences 4");
  assert_non_null(strstr(program_output, "unigram baseline"));
  program_ok("eval run --data data --length 1000000 --batch 1000"); /* no longer than what there is */
  program_refuses(2, "--minutes -1", "train --resume --out run --minutes -1");
  program_ok("train --resume --out run");
  assert_non_null(strstr(program_output, "nothing left to do"));
}

/* Nothing is held out: the run must not fail at its end, its work unsaved. */
static void without_held_out(void **state) {
  (void)state;
  program_ok("data build --out whole --tokenizer t.model --holdout 0 text");
  program_ok(
      "train --data whole --out whole-run --config %s/configs/pico.json --set vocab_size=400 --set "
      "sequence_length=32 --set batch_sequences=4 --set eval_every=1 --set steps=2",
      CHOIR_SOURCE_DIR);
  assert_non_null(strstr(program_output, "done: 2 steps"));
  assert_int_equal(access(program_path("whole-run/checkpoints/00000002/state.safetensors"), R_OK), 0);
  program_refuses(1, "nothing to evaluate", "eval whole-run --data whole");
}

/* `choir train | head -1`: the run ends with a checkpoint. */
static void closed_pipe(void **state) {
  (void)state;
  program_ok(TRAIN "--out piped --set steps=100000 --set eval_every=1 | head -1");
  program_ok("eval piped --data data");
}

/* A loss that is not a number is no result. */
static void weights_not_finite(void **state) {
  (void)state;
  choir_model *model;
  choir_tokenizer *tokenizer;
  choir_parameter parameter;
  test_ok(choir_model_load(program_path("run"), NULL, &model));
  test_ok(choir_tokenizer_load(program_path("t.model"), &tokenizer));
  test_ok(choir_model_parameter(model, 0, &parameter));
  parameter.data[7] = NAN;
  test_ok(choir_model_save(model, tokenizer, program_path("spoilt")));
  program_refuses(1, parameter.name, "eval spoilt --data data");
  choir_tokenizer_free(tokenizer);
  choir_model_free(model);
}

static void replaced_bytes(void **state) {
  (void)state;
  FILE *file = fopen(program_path("latin"), "w");
  assert_non_null(file);
  for (int i = 0; i < 300; i++) fprintf(file, "ka\xE9 pe %d\n", i);
  fclose(file);
  program_refuses(1, "not UTF-8", "data build --out latin-data --tokenizer t.model latin");
  program_ok("data build --out latin-data --tokenizer t.model --replace-invalid latin");
}

static void report(void **state) {
  (void)state;
  char *html;
  size_t bytes;
  program_ok("report run --out r.html");
  test_ok(ch_file_read(program_path("r.html"), 1 << 24, &html, &bytes));
  assert_non_null(strstr(html, "<svg"));
  assert_non_null(strstr(html, "Layer 3: experts per token"));
  assert_null(strstr(html, "http")); /* nothing is fetched */
  assert_null(strstr(html, "nan"));
  free(html);
  program_refuses(1, "metrics.jsonl", "report data --out r.html");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(train_and_look),     cmocka_unit_test(without_held_out), cmocka_unit_test(closed_pipe),
      cmocka_unit_test(weights_not_finite), cmocka_unit_test(replaced_bytes),   cmocka_unit_test(report),
  };
  return cmocka_run_group_tests(tests, setup, program_teardown);
}
