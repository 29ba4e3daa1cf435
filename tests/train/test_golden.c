/* What earlier versions wrote (tests/golden/VERSION.tar.gz, made by their programs) is read by this one: data, a run
 * that goes on, and an export. */
#include <math.h>

#include "program.h"

static const char *const versions[] = {"0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0"};
enum { VERSIONS = sizeof versions / sizeof *versions };

static double number_of(const char *key) {
  json_t *root = program_json();
  double value = json_at(root, key);
  json_decref(root);
  return value;
}

static void unpack(int v) {
  program_must("rm -rf * && tar xzf " CHOIR_SOURCE_DIR "/tests/golden/%s.tar.gz", versions[v]);
}

/* The last evaluation of the run, again; and the text that it wrote. */
static void is_evaluated_and_generated_from(void **state) {
  for (int v = 0; v < VERSIONS; v++) {
    unpack(v);
    program_must("grep '\"event\":\"eval\"' run/metrics.jsonl | tail -n 1");
    double loss = number_of("loss");
    program_must("choir eval run --data data --sequences 4 --threads 1 --json");
    if (!(fabs(number_of("loss") - loss) < 1e-5)) fail_msg("%s: loss %.9g", versions[v], loss);
    program_must(/* 0.1 and 0.2 did not repeat the prompt */
                 "choir generate --prompt kalo --max-tokens 12 --temperature 0 --threads 1 run 2>/dev/null | sed "
                 "'s/^kalo//' >now && "
                 "sed 's/^kalo//' generated | cmp - now");
    program_must("choir report run --out page.html && head -c 60 " CHOIR_SOURCE_DIR
                 "/tests/golden/text.txt >text && choir inspect run --text text --threads 1 --out page.html");
  }
}

/* The same text and tokenizer give the same bytes as then. */
static void data_are_built_alike(void **state) {
  for (int v = 0; v < VERSIONS; v++) {
    unpack(v);
    program_must(
        "choir data build --tokenizer data/tokenizer.model --separator %%%% --holdout 0.25 --out "
        "again " CHOIR_SOURCE_DIR "/tests/golden/text.txt && for f in data/*.shard; do cmp $f again/${f#data/}; done");
  }
}

/* No byte of the log that was there changes; what the run does not know yet, as its best checkpoint, is found. */
static void stored_run_resumes(void **state) {
  for (int v = 0; v < VERSIONS; v++) {
    unpack(v);
    program_must("cp run/metrics.jsonl before && choir train --resume --threads 1 --out run --data data --set steps=6");
    program_must(
        "head -c $(wc -c <before) run/metrics.jsonl | cmp - before && grep -q '\"step\":6,' run/metrics.jsonl && "
        "test $(cat run/best) = 00000006");
    program_must("choir train --init-from run --threads 1 --data data --out from --set steps=1");
  }
}

/* An export gives the loss that was measured when it was made. */
static void export_is_imported(void **state) {
  for (int v = 0; v < VERSIONS; v++) {
    unpack(v);
    if (access("exported", F_OK)) continue;
    program_must("cat exported.json");
    double loss = number_of("loss");
    program_must(
        "choir import exported --out model && choir data build --tokenizer model/tokenizer.model --separator %%%% "
        "--holdout 0.25 --out again " CHOIR_SOURCE_DIR "/tests/golden/text.txt >/dev/null");
    program_must("choir eval model --data again --sequences 0 --threads 1 --json");
    if (!(fabs(number_of("loss") - loss) < 1e-5)) fail_msg("%s: loss %.9g", versions[v], loss);
  }
}

TEST_MAIN(program_directory_make, program_directory_remove, is_evaluated_and_generated_from, data_are_built_alike,
          stored_run_resumes, export_is_imported)
