/* The program's whole path: text, tokenizer, data, training, evaluation, report. Interruptions: test_resume.c. */

#include <errno.h>
#include <sys/stat.h>

#include "choir/choir.h"
#include "data/encoder.h"
#include "file/file.h"
#include "npy/npy.h"
#include "page.h"

#define TRAIN                                                                                  \
  "choir train --config config.json --set layers=4 --set eval_every=4 --set eval_sequences=4 " \
  "--set checkpoint_every=3 --set keep_checkpoints=2 "

static void train_and_look(void **state) {
  program_must(TRAIN "--data data --out run --set steps=8");
  assert_non_null(strstr(program_output, "done: 8 steps"));
  assert_non_null(strstr(program_output, "held-out loss"));
  program_refuses(1, "resume", TRAIN "--data data --out run --set steps=8");
  program_refuses(1, "nowhere", TRAIN "--data nowhere --out other");

  program_must(
      "choir eval run --json >by-run; for c in run/checkpoints/*; do choir eval $c --json >by-step; done;"
      "cmp by-step by-run && choir eval run --data data --json | cmp - by-run");
  program_must("choir eval run --data data --json");
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
    for (size_t i = 0; i < 5; i++) {
      int64_t count = json_integer_value(json_array_get(json_object_get(layer, "histogram"), i));
      tokens += count;
      held += count * (int64_t)i;
    }
    assert_int_equal(tokens, (int64_t)json_at(layer, "tokens"));
    assert_int_equal(tokens, (int64_t)json_at(root, "tokens")); /* of this evaluation alone, and of all its batches */
    assert_int_equal(held, (int64_t)json_at(layer, "assignments"));
  }
  const json_t *causal = json_object_get(root, "threshold");
  char baseline[64], outcome[128];
  assert_true(fabs(json_at(root, "causal_gap") - (json_at(causal, "loss") - loss)) < 1e-8);
  double nat = json_at(causal, "bits_per_byte") / json_at(causal, "loss"); /* in bits per byte */
  ch_format(baseline, sizeof baseline, "perplexity %.2f\n", exp(json_at(root, "unigram_loss")));
  ch_format(outcome, sizeof outcome, "held-out loss: %.2f bits per byte (unigram baseline: %.2f), threshold routing\n",
            json_at(causal, "bits_per_byte"), nat * json_at(root, "unigram_loss"));
  json_decref(root);
  program_must("choir eval run --data data");
  assert_non_null(strstr(program_output, baseline));
  assert_non_null(strstr(program_output, outcome));
  program_must("choir eval run --text corpus.txt --sequences 4");
  assert_non_null(strstr(program_output, "unigram baseline"));
  program_must("choir eval run --data data --length 1000000 --batch 1000"); /* no longer than what there is */
  program_must(
      "for order in '' --in-order; do choir eval run --data data --sequences 2 --json $order >in$order; done;"
      "! cmp -s in in--in-order"); /* the first two of the held-out text, or two from all over it */
  program_refuses(2, "--minutes -1", "choir train --resume --out run --minutes -1");
  program_must("choir train --resume --out run");
  assert_non_null(strstr(program_output, "nothing left to do"));
}

/* Products that round by themselves give the bits of copies, and take the memory of none. */
static void without_expert_copies(void **state) {
  const char *const copies[] = {"true", "false"};
  double bytes[2];
  for (int i = 0; i < 2; i++) {
    program_must(TRAIN
                 "--data data --out copies-%s --set steps=5 --set compute=bf16 --emulate-bf16 "
                 "--set expert_copies=%s",
                 copies[i], copies[i]);
    program_must("choir info %s/configs/small.json --set compute=bf16 --set expert_copies=%s --json", CHOIR_SOURCE_DIR,
                 copies[i]);
    json_t *root = program_json();
    bytes[i] = json_at(json_object_get(root, "train_memory"), "weights");
    json_decref(root);
  }
  program_must(
      "cmp copies-true/checkpoints/00000005/model.safetensors copies-false/checkpoints/00000005/model.safetensors");
  assert_true(bytes[1] < 0.8 * bytes[0]); /* 4 bytes a weight in place of 6, nearly all of them experts' */
}

/* Nothing is held out: the run must not fail at its end, its work unsaved. */
static void without_held_out(void **state) {
  program_must("choir data build --out whole --tokenizer tokenizer.model --holdout 0 corpus.txt");
  program_must(
      "choir train --data whole --out whole-run --config %s/configs/pico.json --set vocab_size=320 --set "
      "sequence_length=32 --set batch_sequences=4 --set eval_every=1 --set steps=2",
      CHOIR_SOURCE_DIR);
  assert_non_null(strstr(program_output, "done: 2 steps"));
  assert_int_equal(access("whole-run/checkpoints/00000002/state.safetensors", R_OK), 0);
  program_refuses(1, "nothing to evaluate", "choir eval whole-run --data whole");
}

/* A source without evaluated tokens has no loss, rather than a loss of 0. */
static void source_left_out(void **state) {
  program_must(
      "choir data build --out two --tokenizer tokenizer.model --holdout 0.2 --separator '\\f' "
      "--source a: corpus.txt --source b: corpus.txt && choir eval run --data two --sequences 1");
  const char *row = strstr(program_output, "\nb ");
  assert_non_null(row);
  int tokens = -1;
  char loss[8];
  assert_int_equal(sscanf(row, " b %d %7s", &tokens, loss), 2);
  assert_true(tokens == 0 && !strcmp(loss, "-"));
}

/* `choir train | head -1`: the run ends with a checkpoint. */
static void closed_pipe(void **state) {
  program_must(TRAIN "--data data --out piped --set steps=100000 --set eval_every=1 | head -1");
  program_must("choir eval piped --data data");
}

/* A loss that is not a number is no result. */
static void weights_not_finite(void **state) {
  choir_model *model;
  choir_tokenizer *tokenizer;
  choir_parameter parameter;
  test_ok(choir_model_load("run", NULL, &model, NULL));
  test_ok(choir_tokenizer_load("tokenizer.model", &tokenizer));
  test_ok(choir_model_parameter_at(model, 0, &parameter));
  parameter.data[7] = NAN;
  test_ok(choir_model_save(model, tokenizer, "spoilt"));
  program_refuses(1, parameter.name, "choir eval spoilt --data data");
  choir_tokenizer_free(tokenizer);
  choir_model_free(model);
}

/* The loss of predicting every token of a text by how often it is there, and one time more. */
static double loss_by_frequency(const char *path) {
  choir_tokenizer *tokenizer;
  ch_text_tokens text;
  double count[320] = {0}, loss = 0;
  test_ok(choir_tokenizer_load("tokenizer.model", &tokenizer));
  test_ok(ch_text_tokens_read(tokenizer, path, 0, NULL, NULL, &text));
  for (size_t i = 0; i < text.count; i++) count[text.ids[i]]++;
  for (size_t i = 1; i < text.count; i++) loss -= log((count[text.ids[i]] + 1) / ((double)text.count + 320));
  loss /= (double)(text.count - 1);
  free(text.ids);
  choir_tokenizer_free(tokenizer);
  return loss;
}

/* Bits a byte are of the bytes that were evaluated; beside them stands what gzip makes of a whole text. */
static void a_text_by_bytes(void **state) {
  program_must("choir eval run --text corpus.txt --json --routing batch");
  json_t *whole = program_json();
  program_must("choir eval run --text corpus.txt --json --routing batch --sequences 4");
  json_t *part = program_json();
  double ratio = json_at(whole, "bits_per_byte") / json_at(whole, "loss");
  assert_true(fabs(json_at(part, "bits_per_byte") / json_at(part, "loss") - ratio) < 0.01 * ratio);
  assert_true(json_at(part, "bytes") < json_at(whole, "bytes"));
  assert_true(json_is_null(json_object_get(part, "gzip_bits_per_byte")));
  program_must("gzip -nc corpus.txt | wc -c");
  double packed = 8 * strtod(program_output, NULL) / json_at(whole, "bytes");
  assert_true(fabs(json_at(whole, "gzip_bits_per_byte") - packed) < 0.02 * packed);
  assert_true(fabs(json_at(whole, "unigram_loss") - loss_by_frequency("corpus.txt")) < 1e-9);
  json_decref(whole);
  json_decref(part);
  program_must(
      "{ printf '\\357\\273\\277'; cat corpus.txt; } >marked.txt; choir eval run --text corpus.txt --json >plain; "
      "choir eval run --text marked.txt --json >marked; cmp plain marked"); /* a byte order mark is no text */
  program_must("choir eval run --text corpus.txt");
  assert_non_null(strstr(program_output, "loss on the text: "));
  assert_non_null(strstr(program_output, ", gzip: "));
}

/* Two threads on one CPU have half of their time at most: it is said once, or again where it has become much less. */
static void a_busy_machine(void **state) {
  int told = 100;
  program_must(
      "one=$(taskset -pc $$ | sed 's/.*: //; s/[-,].*//'); taskset -pc $one $$ >taskset; choir train --config "
      "config.json --data data --out busy --threads 2 --set steps=1000000 --set checkpoint_every=0 --set eval_every=0 "
      "--minutes 0.12");
  for (const char *at = program_output; (at = strstr(at, "this machine: training gets ")); at++) {
    int share = atoi(at + strlen("this machine: training gets "));
    if (share > told - 24) fail_msg("%d %% after %d %%: %s", share, told, program_output);
    told = share;
  }
  assert_true(told < 100);
  assert_null(strstr(program_output, "busy:"));
}

static void replaced_bytes(void **state) {
  FILE *file = fopen("latin", "w");
  assert_non_null(file);
  for (int i = 0; i < 300; i++) fprintf(file, "ka\xE9 pe %d\n", i);
  fclose(file);
  program_refuses(1, "not UTF-8", "choir data build --out latin-data --tokenizer tokenizer.model latin");
  program_must("choir data build --out latin-data --tokenizer tokenizer.model --replace-invalid latin");
}

static void report(void **state) {
  program_must("choir report run --out r.html");
  json_decref(page_data("r.html"));
  PAGE_SHOWS("r.html", "", "<svg", "Layer 3: experts per token", "!NaN");
  program_must("choir report run run --out r.html");
  PAGE_SHOWS("r.html", "", "<h1>2 runs</h1>", "Nothing.</p>", "the same, causal");
  program_refuses(1, "metrics.jsonl", "choir report data --out r.html");
}

#define STEP(n, loss) "{\"event\":\"step\",\"step\":" #n ",\"loss\":" #loss ",\"tokens\":9}\n"

/* A line that is still being written is left out; so is any other broken line, and named. */
static void report_on_odd_metrics(void **state) {
  program_must("mkdir told && printf '%%s' '%s' >told/metrics.jsonl && choir report told",
               STEP(1, 2.5) "{\"event\":\"st");
  assert_null(strstr(program_output, "note:"));
  program_must("printf '%%s' '%s' >told/metrics.jsonl; choir report told", STEP(1, 2.5) "{\"event\":\n" STEP(2, 2.5));
  assert_non_null(strstr(program_output, "note: told/metrics.jsonl: 1 lines that are not JSON"));
  program_refuses(1, "no step yet", "echo '{\"event\":\"run\"}' >told/metrics.jsonl; choir report told");
}

/* The loss of a run's first step. */
static double first_loss(const char *run) {
  program_must("grep '\"step\":1,' %s/metrics.jsonl | head -n 1", run);
  json_t *root = program_json();
  double loss = json_at(root, "loss");
  json_decref(root);
  return loss;
}

/* Weights of another run, and nothing else of it; as all experts of a larger one the loss is the same to rounding. */
static void from_a_checkpoint(void **state) {
  program_must(
      "choir train --config config.json --data data --out dense --set router.name=dense --set experts=1 --set "
      "steps=12 --threads 1 && choir train --init-from dense --data data --out again --set steps=3 &&"
      "choir train --init-from dense --data data --out up --set steps=3 --set experts=4 --set "
      "router.name=switch_top1 --set router.jitter=0 --set router.aux_loss_weight=0 --set "
      "router.capacity_factor=4 --set router.normalize_gates=true");
  double dense = first_loss("dense"), again = first_loss("again"), up = first_loss("up");
  assert_true(again < dense - 0.2 && fabs(up - again) < 1e-5);
  program_must("grep -q '\"from\":\"/.*dense/checkpoints/00000012\"' up/metrics.jsonl");
  /* killed before its first checkpoint, which no log knows of, it begins there once more */
  program_must(
      "cp -r again early; rm -r early/checkpoints early/best; head -n 1 again/metrics.jsonl >early/metrics.jsonl");
  program_refuses(1, "early/checkpoints: has no checkpoint, but the log of the run knows of",
                  "choir train --resume --out early");
  program_must(
      "rm early/timing.jsonl; choir train --resume --out early && cmp early/metrics.jsonl again/metrics.jsonl");
  program_must(/* what is made anew in its place begins with nothing */
               "rm -r early/checkpoints early/best early/*.jsonl; choir train --config config.json --data data --out "
               "early --set "
               "steps=1 && "
               "test ! -e early/from.path");
  program_refuses(2, "give one of --init-from", "choir train --init-from dense --resume --out again");
  program_refuses(1, "layer 1 is geglu there, and gelu here",
                  "choir train --config config.json --set moe_every=0 --set steps=1 --data data --out gated >text &&"
                  "choir train --init-from gated --config config.json --data data --out no");
  program_refuses(1, "is not the tokenizer of the data",
                  ""
                  "head -c 60000 corpus.txt >part.txt;"
                  "choir tokenizer train --vocab-size 320 --out part.model part.txt >text 2>&1 && choir data build "
                  "--tokenizer part.model --separator '\\f' --holdout 0.1 --out part corpus.txt >text 2>&1;"
                  "choir train --init-from dense --data part --out no");
}

/* A run that waits for a lower loss ends two evaluations after the best one, however often it was stopped. */
static void ends_early(void **state) {
  program_must(
      TRAIN "--data data --out early_end --set train.learning_rate=0.9 --set eval_every=1 --set steps=60 --patience 2");
  assert_non_null(strstr(program_output, "no lower held-out loss"));
  program_must("cd early_end/checkpoints; test $(ls | tail -n 1) -eq $(($(cat ../best) + 2))");
  program_must("choir train --resume --out early_end --patience 2");
  assert_non_null(strstr(program_output, "nothing left to do"));
  program_must(
      "stop='--patience 2 --minutes 1e-9'; " TRAIN
      "--data data --out stopped_end --set train.learning_rate=0.9 --set eval_every=1 --set steps=60 $stop;"
      "until choir train --resume --out stopped_end $stop | tee said && grep -q 'nothing left' said; do :; done;"
      "last=checkpoints/$(ls early_end/checkpoints | tail -n 1); cmp early_end/metrics.jsonl stopped_end/metrics.jsonl "
      "&&"
      "cmp early_end/$last/state.safetensors stopped_end/$last/state.safetensors");
  /* What the model writes is a function of the run, too; and on the page. */
  program_must(
      "for r in early_end stopped_end; do grep '\"event\":\"sample\"' $r/timing.jsonl | sort -u >$r.samples; done;"
      "cmp early_end.samples stopped_end.samples && test $(wc -l <early_end.samples) -ge 3 &&"
      "choir report early_end && grep -q '\"samples\":\\[{\"event\":\"sample\",\"step\":1,\"prompt\":\"[^\"]' "
      "early_end/report.html");
  program_must(
      "last=$(ls early_end/checkpoints | tail -n 1 | sed 's/^0*//'); choir train --resume --out early_end --set "
      "steps=$((last + 1))"); /* patience is the call's, and not the run's */
  program_refuses(2, "--patience -1: must be a whole number", "choir train --resume --out early_end --patience -1");
}

/* Whether the checkpoint of a run of one step has prices other than 0. */
static int has_prices(const char *run) {
  char path[128];
  choir_tensors *file;
  int found = 0;
  snprintf(path, sizeof path, "%s/checkpoints/00000001/model.safetensors", run);
  test_ok(choir_tensors_load(path, 1, &file));
  const choir_tensor *t = choir_tensors_find(file, "layers.1.moe.thresholds");
  assert_non_null(t);
  for (int64_t e = 0; e < t->shape[0]; e++) found |= ((const float *)t->data)[e] != 0;
  choir_tensors_free(file);
  return found;
}

/* A trained model goes on with another router; prices are of one router and one kind of score. */
static void from_another_router(void **state) {
  program_must(
      "choir train --config config.json --data data --out top --set router.name=gshard_top2 --set steps=12;"
      "choir train --init-from top --data data --out chosen --set router.name=expert_choice --set steps=1;"
      "choir train --init-from top --data data --out by-hash --set router.name=hash --set steps=1;"
      "choir train --init-from by-hash --data data --out learned --set router.name=switch_top1 --set steps=1");
  double begun = first_loss("top");
  assert_true(first_loss("chosen") < begun - 0.2 && first_loss("by-hash") < begun - 0.2);
  assert_true(first_loss("learned") < begun - 0.2);
  program_must(
      "choir train --config config.json --data data --out paid --set router.name=bias_balanced --set steps=1;"
      "for score in softmax sigmoid; do choir train --init-from paid --data data --out $score --set "
      "router.score=$score "
      "--set router.bias_rate=0 --set steps=1; done");
  assert_true(has_prices("paid") && has_prices("sigmoid") && !has_prices("softmax"));
}

/* Names are bytes, and JSON is UTF-8: logs show them as messages do. */
static void names_that_are_not_utf8(void **state) {
  program_must(
      "run=\"$(printf 'caf\\351')\"; choir train --config config.json --data data --out \"$run\" --set steps=2 --set "
      "checkpoint_every=1 && test \"$(grep -c '\"event\":\"checkpoint\"' \"$run\"/timing.jsonl)\" = 2 &&"
      "choir train --init-from \"$run\" --data data --out served --set steps=1");
  program_must("grep -qF 'caf\\\\xE9/checkpoints/00000002\"' served/metrics.jsonl");
}

/* A choice of the call: every verb that runs a model takes it, and none writes it into what it makes. */
static void backends(void **state) {
  static const char *const calls[] = {"train --config config.json --data data --out none",
                                      "eval run --data data",
                                      "forward run tokens.npy",
                                      "generate run --prompt ka",
                                      "stats run --text corpus.txt",
                                      "inspect run --text corpus.txt --out p.html",
                                      "score run --requests corpus.txt",
                                      "probe run"};
  int32_t token[64] = {0};
  ch_npy array = {.type = CH_NPY_INT32, .dims = 2, .shape = {2, 32}, .data = token};
  test_ok(ch_npy_write("tokens.npy", &array));
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    program_refuses(1, "backend 'metal' is not in this build; take one that is: cpu, reference, cuda",
                    "choir %s --backend metal", calls[i]);
  program_refuses(2, "backend 'metal' is not in this build", "choir bench gelu count=100 --backend metal");
  program_must("choir bench gelu count=100 --backend reference");
  program_must("choir eval run --data data --backend reference");
  program_must(TRAIN "--data data --out other --backend reference --set steps=1");
  program_refuses(1, "", "grep -q reference other/config.json");
}

TEST_MAIN(program_setup, program_directory_remove, train_and_look, without_expert_copies, without_held_out,
          source_left_out, closed_pipe, weights_not_finite, a_text_by_bytes, a_busy_machine, replaced_bytes, report,
          report_on_odd_metrics, from_a_checkpoint, from_another_router, names_that_are_not_utf8, backends, ends_early)
