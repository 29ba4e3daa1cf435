/* Bits of the files that choir reads, flipped one at a time.
 * faults_flips FLIPS [STATE]: how many of each file; STATE names a file that keeps how far it is, so that a run that
 * was ended goes on there. FAULTS_SEED says which bits, else the clock does. */
#include "faults.h"

/* A command and a file that it reads. What choir wrote itself has sums: a flip is refused, or changes nothing. Other
 * people's files have none: a flip may change what comes out, but ends in no crash. */
typedef struct {
  const char *file, *command;
  int ours;
} reading;

#define SCORES "choir score --threads 1 pre --requests requests"
#define EVALUATES "choir eval --threads 1 --data data pre"
#define GOES_ON                                                                                                    \
  "rm -rf more && cp -r half more && choir train --threads 1 --resume --set steps=4 --out more >/dev/null && cat " \
  "more/checkpoints/00000004/*.safetensors | sha256sum"
#define ROUTES "choir route --router expert_choice --json scores.npy"
#define IMPORTS "rm -rf back && choir import --out back hf >/dev/null && cat back/model.safetensors | sha256sum"
#define IMPORTS_GGUF \
  "rm -rf back && choir import --out back gguf/some.gguf >/dev/null && cat back/model.safetensors | sha256sum"
#define ENCODES(name)                                               \
  "rm -f new.model && choir tokenizer import --out new.model " name \
  ".json >/dev/null && choir "                                      \
  "tokenizer encode --tokenizer new.model small.txt"
#define SCORES_PARTS "choir score --threads 1 parts --requests requests"
#define REPORTS "choir report half --out page.html >/dev/null && sha256sum page.html"
#define INFORMS "choir info run.json"
#define PLANS "choir plan --vocab-size 300 --ranks 2 --cluster cluster.json config.json"
#define BUILDS(form)                                                                                      \
  "rm -rf built && choir data build --threads 1 --tokenizer tokenizer.model --out built corpus.txt." form \
  " >/dev/null && cat built/*.shard | sha256sum"
#define SCORES_TASK "choir score --threads 1 pre --task mine.json --data set --out labels >/dev/null && cat labels"

static const reading readings[] = {
    {"pre/checkpoints/00000002/model.safetensors", SCORES, 1},
    {"pre/checkpoints/00000002/config.json", SCORES, 1},
    {"pre/checkpoints/00000002/tokenizer.model", SCORES, 1},
    {"half/checkpoints/00000002/state.safetensors", GOES_ON, 1},
    {"half/checkpoints/00000002/model.safetensors", GOES_ON, 1},
    {"data/text.train.shard", EVALUATES, 1},
    {"data/text.heldout.shard", EVALUATES, 1},
    {"data/tokenizer.model", EVALUATES, 1},
    {"data/data.json", EVALUATES, 0},
    {"half/config.json", GOES_ON, 0},
    {"half/metrics.jsonl", GOES_ON, 0},
    {"tokenizer.model", "choir tokenizer encode --tokenizer tokenizer.model small.txt", 0},
    {"corpus.txt.gz", BUILDS("gz"), 1},
    {"corpus.txt.bz2", BUILDS("bz2"), 1},
    {"corpus.txt.xz", BUILDS("xz"), 1},
    {"requests", SCORES, 0},
    {"scores.npy", ROUTES, 0},
    {"cluster.json", PLANS, 0},
    {"mine.json", SCORES_TASK, 0},
    {"set/rows.tsv", SCORES_TASK, 0},
    {"hf/config.json", IMPORTS, 0},
    {"hf/model.safetensors", IMPORTS, 0},
    {"gguf/some.gguf", IMPORTS_GGUF, 0},
    {"sentences.json", ENCODES("sentences"), 0},
    {"bytes.json", ENCODES("bytes"), 0},
    {"parts/checkpoints/00000002/model.safetensors.index.json", SCORES_PARTS, 1},
    {"parts/checkpoints/00000002/model-00002-of-00004.safetensors", SCORES_PARTS, 1},
    {"corpus.txt.zst", BUILDS("zst"), 1},
    {"half/data.path", GOES_ON, 0},
    {"half/timing.jsonl", REPORTS, 0},
    {"run.json", INFORMS, 0},
};
enum { READINGS = sizeof readings / sizeof *readings };

static int flips = 2;
static const char *state_file;

/* Where a run that was ended goes on, and the seed that says which bits. */
static uint64_t seed;
static int64_t next;

static void state_load(void) {
  FILE *file = state_file ? fopen(state_file, "r") : NULL;
  unsigned long long s;
  long long n;
  seed = getenv("FAULTS_SEED") ? strtoull(getenv("FAULTS_SEED"), NULL, 10) : (uint64_t)time(NULL);
  if (file && fscanf(file, "%llu %lld", &s, &n) == 2) seed = s, next = n;
  if (file) fclose(file);
}

static void state_save(void) {
  FILE *file = state_file ? fopen(state_file, "w") : NULL;
  if (!file) return;
  fprintf(file, "%llu %lld\n", (unsigned long long)seed, (long long)next);
  fclose(file);
}

static int run(const reading *r) { return program_run("{ %s; } 2>said", r->command); }

static void flip(const char *name, int64_t bit) {
  FILE *file = fopen(name, "r+b");
  int byte;
  if (!file || fseek(file, (long)(bit / 8), SEEK_SET) || (byte = fgetc(file)) < 0 ||
      fseek(file, (long)(bit / 8), SEEK_SET) || fputc(byte ^ 1 << bit % 8, file) < 0 || fclose(file))
    fail_msg("%s: cannot flip bit %lld", name, (long long)bit);
}

static int64_t bits_of(const char *name) {
  size_t size = 0;
  free(program_read(name, &size));
  return 8 * (int64_t)size;
}

/* Small files are flipped in their headers and words as often as large ones: half of the bits are of the first KiB. */
static int64_t drawn(int number, int64_t bits) {
  ch_rng rng = ch_rng_make(seed, CH_STREAM_TEST, 1);
  uint64_t all = (uint64_t)(number % 2 && bits > 8192 ? 8192 : bits);
  return (int64_t)ch_rng_below(rng, (uint64_t)number, all);
}

static void flipped_bits(void **state) {
  (void)state;
  static char wanted[sizeof program_output];
  const reading *last = NULL;
  int refused = 0, same = 0, other = 0;
  state_load();
  for (; next < (int64_t)flips * READINGS; next++, state_save()) {
    const reading *r = &readings[next / flips];
    faults_progress("flips", next, (int64_t)flips * READINGS);
    if (r != last) {
      if (run(r)) fail_msg("%s: %s", r->command, program_output);
      snprintf(wanted, sizeof wanted, "%s", program_output);
      last = r;
    }
    int64_t bit = drawn((int)next, bits_of(r->file));
    flip(r->file, bit);
    int status = run(r);
    flip(r->file, bit);
    int is_same = !status && !strcmp(wanted, program_output);
    if (status > 2 || status < 0 || (!status && !is_same && r->ours))
      fail_msg("%s, bit %lld: status %d of %s: %s", r->file, (long long)bit, status, r->command, program_output);
    if (status && !bits_of("said")) fail_msg("%s, bit %lld: refused without a word", r->file, (long long)bit);
    refused += status != 0, same += is_same, other += !status && !is_same;
  }
  if (state_file) unlink(state_file);
  print_message("flips: %d refused, %d without effect, %d that other people's files may have\n", refused, same, other);
}

/* A run that is half done, a model for import, and what else is read. */
static int setup(void **state) {
  setenv("ASAN_OPTIONS", "detect_leaks=0:exitcode=99", 0); /* a report of a sanitizer is no refusal */
  setenv("UBSAN_OPTIONS", "exitcode=99", 0);
  if (faults_setup(state)) return -1;
  program_must(
      "choir train --threads 1 --config config.json --data data --out half --set steps=2;"
      "choir train --threads 1 --config config.json --data data --out parts --set steps=2" FAULTS_FILES
      ";"
      "gzip -k corpus.txt; bzip2 -k corpus.txt; xz -k corpus.txt; zstd -q corpus.txt; cp config.json run.json;"
      "cd '" CHOIR_SOURCE_DIR
      "'; cp fuzz/seeds/tokenizer_json/llama.json \"$OLDPWD/sentences.json\";"
      "cp fuzz/seeds/tokenizer_json/olmoe.json \"$OLDPWD/bytes.json\";"
      "cp examples/clusters/ethernet-8.json \"$OLDPWD/cluster.json\"; cd \"$OLDPWD\";"
      "printf '{\"context\": \"ka lo\", \"continuation\": \" mi\"}\\n{\"context\": \"\", \"continuation\": \"re\"}\\n' "
      ">requests");
  program_must(
      "{ printf '\\223NUMPY\\001\\000\\166\\000'; printf '%%-117s\\n' \"{'descr': '<f4', 'fortran_order': False, "
      "'shape': (8, 4), }\"; head -c 128 /dev/zero; } >scores.npy; " ROUTES);
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(flipped_bits)};
  if (argc > 1) flips = atoi(argv[1]);
  if (argc > 2) { /* tests work in a directory of their own */
    FILE *file = fopen(argv[2], "a");
    if (!file || fclose(file)) return 2;
    state_file = realpath(argv[2], NULL);
  }
  return flips < 1 ? 2 : cmocka_run_group_tests(tests, setup, program_directory_remove);
}
