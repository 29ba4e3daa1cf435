/* "-" and pipes where files are wanted, and what is said about them; words that are wrong are refused before any work.
 */
#include "npy/npy.h"
#include "page.h"

static void write_scores(const char *path) {
  float score[64 * 4];
  for (int i = 0; i < 64 * 4; i++) score[i] = (float)fabs(sin(i * i));
  test_ok(ch_npy_write(path, &(ch_npy){.type = CH_NPY_FLOAT32, .dims = 2, .shape = {64, 4}, .data = score}));
}

static void routes_through_pipes(void **state) {
  write_scores("scores.npy");
  program_must("choir route scores.npy --router expert_choice --out gates.npy --json >stats.json");
  program_must(
      "cat scores.npy | choir route - --router expert_choice --out - --json 2>told.json >piped.npy && "
      "cmp gates.npy piped.npy && cmp stats.json told.json");
  program_must("choir route /dev/stdin --router expert_choice --json <scores.npy | cmp - stats.json");
  program_must(
      "mkfifo fifo && (cat scores.npy >fifo &) && choir route fifo --router expert_choice --json | cmp - "
      "stats.json");
  program_must("cat scores.npy | TMPDIR=$PWD choir route - --router expert_choice && ! ls | grep '^choir-'");
  program_refuses(1, "standard input: line 1: 'no' is no number", "echo no | choir route - --router expert_choice");
  program_refuses(1, "given twice", "choir route - --router hash --tokens - <scores.npy");
  program_refuses(1, "cannot be copied to /nowhere", "cat scores.npy | TMPDIR=/nowhere choir route - --router hash");
  program_refuses(1, "standard output", "choir route scores.npy --router expert_choice --out - >/dev/full");
  program_refuses(1, "standard output could not be written", "choir configs >/dev/full");
  program_refuses(1, "standard output could not be written", "choir configs >&-");
}

static void text_through_pipes(void **state) {
  program_corpus("book.txt", 40, 3);
  program_must(
      "choir data build --out files --tokenizer tokenizer.model book.txt && "
      "cat book.txt | choir data build --out piped --tokenizer tokenizer.model - && "
      "for file in text.train.shard text.heldout.shard; do cmp files/$file piped/$file; done");
  program_must(
      "choir tokenizer train --vocab-size 300 --out a.model book.txt && "
      "cat book.txt | choir tokenizer train --vocab-size 300 --out - - | cmp - a.model");
  program_must(
      "choir tokenizer encode --tokenizer a.model --out ids.npy book.txt && "
      "cat book.txt | choir tokenizer encode --tokenizer a.model --out - - | cmp - ids.npy && "
      "choir tokenizer encode --tokenizer a.model - <book.txt | choir tokenizer decode --tokenizer a.model - | "
      "cmp - book.txt");
  program_must(
      "cat a.model | choir tokenizer encode --tokenizer - --out - book.txt | cmp - ids.npy && "
      "cat tokenizer.model | choir data build --out from --tokenizer - book.txt && cmp from/tokenizer.model "
      "tokenizer.model && cat tokenizer.model | choir init config.json --tokenizer - --out init && "
      "choir tokenizer encode --tokenizer init book.txt >/dev/null");
}

/* A pipe that has no end is not copied until the disk is full. */
static void endless_inputs(void **state) {
  program_refuses(1, "/dev/zero: larger than 16.0 MiB", "choir info /dev/zero");
  program_refuses(1, "standard input: larger than 16.0 MiB", "yes | choir plan config.json --cluster -");
  program_refuses(1, "/dev/zero: larger than 16.0 MiB", "choir score run --requests /dev/zero");
  program_refuses(1, "standard input: larger than 16.0 MiB", "yes | choir train --config - --data data --out endless");
}

static void wrong_words(void **state) {
  program_refuses(2, "one word too many: 'eval'", "choir help train eval");
  program_refuses(2, "one word too many: 'now'", "choir help data build now");
  program_must("choir help data build && choir help data");
  program_refuses(2, "no bench case 'nonsense'", "choir bench gelu count=64 nonsense");
  assert_null(strstr(program_output, "peak")); /* nothing has been measured */
  program_refuses(1, "data: exists already and is not empty", "choir init config.json --vocab-size 9 --out data");
  program_refuses(1, "config.json: exists and is not a directory", "choir import nowhere --out config.json");
  program_refuses(1, "no/i: cannot be created: No such file", "choir init nowhere --out no/i/");
  program_refuses(1, "data: is there and not a regular file", "choir inspect nowhere --text corpus.txt --out data");
  program_refuses(1, "no/p: cannot be written: No such file", "choir score nowhere --task CB --data data --out no/p");
  program_refuses(2, "--top-k has no effect at --temperature 0",
                  "choir generate x --prompt x --top-k 2 --temperature 0");
  write_scores("scores.npy");
  program_must("choir route scores.npy --router base --training | grep -q 'not causal'");
  program_must("choir route scores.npy --router base | grep -q '; causal: each token by itself'");
}

/* A run that cannot begin leaves nothing behind, and goes into no data directory. */
static void nothing_is_left(void **state) {
  program_refuses(1, "vocab_size is 99", "choir train --config config.json --data data --out r --set vocab_size=99");
  program_refuses(1, "nodata: cannot open", "choir train --config config.json --data nodata --out r");
  program_refuses(1, "threads is 100000", "choir train --config config.json --data data --out r --threads 100000");
  program_must("! ls -d r");
  program_must("mkdir r && ! choir train --config config.json --data nodata --out r && ls -d r");
  program_must("ls data >before");
  program_refuses(1, "holds built data", "choir train --config config.json --data data --out data");
  program_must("ls data | cmp - before");
}

static void damage_and_what_to_do(void **state) {
  program_must(
      "choir train --config config.json --data data --out run --set steps=9 --set checkpoint_every=3 --set "
      "keep_checkpoints=0 --set eval_every=0");
  program_refuses(1, "name the directory that holds the checkpoint: run/checkpoints/00000009",
                  "choir eval run/checkpoints/00000009/model.safetensors --data data");
  program_refuses(1, "choir eval: threads is 100000", "choir eval run --data data --threads 100000");
  program_must(
      "printf damaged | dd of=run/checkpoints/00000009/model.safetensors bs=1 seek=9000 conv=notrunc;"
      "printf damaged | dd of=run/checkpoints/00000006/state.safetensors bs=1 seek=9000 conv=notrunc");
  program_refuses(1, "run/checkpoints/00000003 is whole, and 'choir train --resume --out run' goes on",
                  "choir eval run/checkpoints/00000009 --data data");
  program_must("choir eval run --data data");
  assert_non_null(strstr(program_output, "run/checkpoints/00000006 is taken"));
  program_must("choir train --resume --out run");
  assert_non_null(strstr(program_output, "goes on from step 3"));
}

/* `choir report A B`: a table of results, and of those fields of the configs that differ. */
static void compares_runs(void **state) {
  program_must(
      "for cap in 2 3; do choir train --config config.json --data data --out cap$cap --set steps=6 --set "
      "router.name=capped_expert_choice --set router.cap=$cap; done; choir report cap2 cap3 --out both.html");
  json_t *runs = page_data("both.html"), *second = json_array_get(json_object_get(runs, "runs"), 1);
  assert_string_equal(json_string_value(json_object_get(second, "name")), "cap3");
  json_decref(runs);
  PAGE_SHOWS("both.html", "", "<td>model.router.cap</td><td class=\"n\">2</td><td class=\"n\">3",
             "!train.learning_rate", "Held-out loss, causal");
  program_refuses(2, "--out FILE.html is required for several runs", "choir report cap2 cap3");
  program_refuses(1, "17 runs; a report is about 1 to 16",
                  "choir report --out x.html cap2 cap2 cap2 cap2 cap2 cap2 cap2 cap2 cap2 cap2 cap2 cap2 cap2 cap2 "
                  "cap2 cap2 cap2");
  program_must("choir report cap2 --out - 2>told | grep -q '</html>' && grep -q 'standard output' told");
}

TEST_MAIN(program_setup, program_directory_remove, routes_through_pipes, text_through_pipes, endless_inputs,
          wrong_words, nothing_is_left, damage_and_what_to_do, compares_runs)
