/* When things go wrong: each mistake gets a message that names the file, field or line and the value, exit status 1 (2
 * for usage), and leaves earlier results as they were. */
#include <sys/mount.h>

#include "choir/choir.h"
#include "npy/npy.h"
#include "program.h"

/* A command that must be refused, what goes before it, and what the message must hold. */
typedef struct refusal {
  const char *what, *prepare, *command;
  int status;
  const char *words[4];
} refusal;

#define TRAIN "choir train --threads 1 --data data --out new --config "

static const refusal refusals[] = {
    /* options and config */
    {"unknown option", "", TRAIN "config.json --minuets 3", 2, {"--minuets", "--minutes"}},
    {"missing option", "", "choir train --config config.json --data data", 2, {"--out"}},
    {"option without its number", "", TRAIN "config.json --minutes many", 2, {"--minutes", "many"}},
    {"dense layers only, and experts",
     "",
     TRAIN "config.json --set dense_layers=1000",
     1,
     {"model.dense_layers", "1000", "no MoE layer"}},
    {"number too large",
     "",
     "choir info config.json --vocab-size 3000000000",
     2,
     {"--vocab-size", "2147483647 at most"}},
    {"data without a name", "", "choir eval run --data ''", 2, {"--data is empty", "DIR"}},
    {"run without a name", "", "choir train --config config.json --data data --out ''", 2, {"--out is empty", "RUN"}},
    {"input without a name", "", "choir eval run --text ''", 2, {"--text is empty", "FILE"}},
    {"operand without a name", "", "choir eval '' --data data", 2, {"operand 1 is empty", "RUN|CHECKPOINT"}},
    {"config as a checkpoint", "", "choir eval config.json --data data", 1, {"config.json: is a file"}},
    {"instruction set that there is not",
     "",
     "CHOIR_ISA=avx-2 choir forward ckpt tokens.npy",
     1,
     {"CHOIR_ISA", "avx-2", "avx2"}},
    {"text that is not there",
     "",
     "choir tokenizer encode --tokenizer tokenizer.model absent",
     1,
     {"absent: No such file"}},
    {"a tokenizer and another vocabulary",
     "",
     "choir init config.json --tokenizer tokenizer.model --vocab-size 100 --out new",
     2,
     {"--vocab-size 100", "320 pieces"}},
    {"no place for a prompt", "", "choir generate run --slots 0", 2, {"--slots 0", "at least 1"}},
    {"no place for a request", "", "choir score run --requests absent.jsonl --slots 0", 2, {"--slots 0", "at least 1"}},
    {"rows of ids without a file",
     "",
     "choir tokenizer encode --tokenizer tokenizer.model --length 4",
     2,
     {"--length"}},
    {"pieces into a file of ids",
     "",
     "choir tokenizer encode --tokenizer tokenizer.model --pieces --out ids.npy",
     2,
     {"--out", "--pieces"}},
    {"a batch of requests, which thresholds route",
     "",
     "choir score run --requests absent.jsonl --batch 4",
     2,
     {"--batch", "--task"}},
    {"a capacity of requests",
     "",
     "choir score run --requests absent.jsonl --capacity-factor 4",
     2,
     {"--capacity-factor", "--task"}},
    {"a capacity of no batch",
     "",
     "choir score run --task RTE --data . --batch 0 --capacity-factor 4",
     2,
     {"--capacity-factor", "--batch 0"}},
    {"nothing to probe", "", "choir probe ckpt --positions 0", 2, {"--positions 0", "at least 1"}},
    {"operand of a bench below its range",
     "",
     "choir bench --seconds 0.01 --repetitions 1 gelu count=-1",
     2,
     {"count is '-1'", "from 0 to 10^12"}},
    {"unknown command", "", "choir trian", 2, {"trian", "train"}},
    {"field of the config as a command",
     "",
     "choir help train.learning_rate",
     2,
     {"'train.learning_rate' is a field of the config", "--set train.learning_rate=VALUE"}},
    {"a verb that another has", "", "choir compare run other", 2, {"choir report A B", "choir study run"}},
    {"unknown command of two words", "", "choir data nonsense", 2, {"'data nonsense'"}},
    {"missing config", "", TRAIN "absent.json", 1, {"absent.json"}},
    {"unknown key",
     "sed s/d_hidden/d_hiden/ config.json >bad.json",
     TRAIN "bad.json",
     1,
     {"bad.json", "d_hiden", "d_hidden"}},
    {"unknown key in --set", "", TRAIN "config.json --set train.stepz=9", 1, {"train.stepz", "train.steps"}},
    {"value of the wrong kind",
     "sed 's/\"steps\": 60/\"steps\": \"sixty\"/' config.json >bad.json",
     TRAIN "bad.json",
     1,
     {"bad.json", "steps"}},
    {"broken JSON", "printf '{\\n\"model\": {\\n oops' >bad.json", TRAIN "bad.json", 1, {"bad.json", "3"}},
    {"unknown router", "", TRAIN "config.json --set router.name=expert_choise", 1, {"expert_choise", "expert_choice"}},
    {"d not divisible by H", "", TRAIN "config.json --set heads=5", 1, {"d_model", "32", "heads", "5"}},
    {"e > n", "", TRAIN "config.json --set experts=200", 1, {"experts", "200", "128"}},
    {"k of 0", "", TRAIN "config.json --set router.capacity_factor=0.01", 1, {"capacity_factor", "0.01", "128"}},
    {"more memory than there is",
     "",
     TRAIN "config.json --set d_hidden=1000000 --set d_model=4096 --set experts=128",
     1,
     {"GiB"}},
    {"vocabulary other than the data's",
     "",
     TRAIN "config.json --set vocab_size=1000",
     1,
     {"vocab_size", "1000", "320"}},
    /* text and data */
    {"text that is not UTF-8",
     "printf 'fine\\nalso fine\\nnot \\377 fine\\n' >bad.txt",
     "choir data build --tokenizer tokenizer.model --out new bad.txt",
     1,
     {"bad.txt", "UTF-8", "3"}},
    {"text that is not UTF-8, for a tokenizer",
     "",
     "choir tokenizer train --vocab-size 300 --out new.model bad.txt",
     1,
     {"bad.txt", "UTF-8"}},
    {"empty corpus",
     ": >empty.txt",
     "choir data build --tokenizer tokenizer.model --out new empty.txt",
     1,
     {"empty.txt"}},
    {"empty corpus for a tokenizer",
     "",
     "choir tokenizer train --vocab-size 300 --out new.model empty.txt",
     1,
     {"empty.txt"}},
    {"missing text", "", "choir data build --tokenizer tokenizer.model --out new absent.txt", 1, {"absent.txt"}},
    {"corpus of one short document",
     "echo 'ka lo mi' >one.txt",
     "choir data build --tokenizer tokenizer.model --out new one.txt",
     1,
     {"text", "holdout"}},
    {"data as a run's directory",
     "",
     "choir train --config config.json --data data --out data",
     1,
     {"data holds built"}},
    {"data as a fine-tuned run's directory",
     "",
     "choir finetune --init-from run --task RTE --data . --out data",
     1,
     {"data holds built"}},
    {"missing data", "", "choir train --config config.json --data absent --out new/run", 1, {"absent"}},
    {"missing data of a task", "", "choir finetune --init-from run --task RTE --data absent --out n", 1, {"absent"}},
    {"files of a task that are missing",
     "",
     "choir finetune --init-from run --task RTE --data . --out new/run",
     1,
     {"train.tsv"}},
    {"unknown task", "", "choir finetune --init-from run --task absent --data . --out new", 1, {"absent"}},
    {"too few tokens for one sequence",
     "choir data build --tokenizer tokenizer.model --holdout 0 --out few one.txt",
     "choir train --threads 1 --config config.json --data few --out new",
     1,
     {"text", "9", "32"}},
    {"field that no line has",
     "echo '{\"body\": \"ka lo\"}' >lines.jsonl",
     "choir data build --tokenizer tokenizer.model --field text --out new lines.jsonl",
     1,
     {"lines.jsonl", "1", "text"}},
    {"truncated archive",
     "gzip -c corpus.txt | head -c 5000 >cut.gz",
     "choir data build --tokenizer tokenizer.model --out new cut.gz",
     1,
     {"cut.gz"}},
    {"output that is not empty", "", "choir data build --tokenizer tokenizer.model --out data corpus.txt", 1, {"data"}},
    {"not a tokenizer", "", "choir data build --tokenizer corpus.txt --out new corpus.txt", 1, {"corpus.txt"}},
    {"tokenizer that is not the shards'",
     "choir tokenizer train --vocab-size 290 --out other.model corpus.txt && cp -r data mixed && cp other.model "
     "mixed/tokenizer.model",
     "choir train --threads 1 --config config.json --data mixed --out new",
     1,
     {"mixed", "tokenizer"}},
    {"tokenizer that is not the checkpoint's",
     "choir data build --tokenizer other.model --separator '\\f' --out others corpus.txt",
     "choir eval run --data others",
     1,
     {"tokenizer"}},
    {"truncated shard",
     "cp -r data short && truncate -s -100 short/text.train.shard",
     "choir train --threads 1 --config config.json --data short --out new",
     1,
     {"short/text.train.shard"}},
    {"data changed under a run",
     "choir data build --tokenizer tokenizer.model --separator '\\f' --seed 9 --out again corpus.txt",
     "choir train --threads 1 --resume --out run --data again",
     1,
     {"data"}},
    /* checkpoints */
    {"no checkpoint", "", "choir eval absent --data data", 1, {"absent"}},
    {"truncated checkpoint",
     "cp -r ckpt cut && truncate -s -1000 cut/model.safetensors",
     "choir forward cut tokens.npy",
     1,
     {"cut/model.safetensors"}},
    {"missing tensor",
     "",
     "choir forward missing tokens.npy",
     1,
     {"missing/model.safetensors", "layers.1.moe.router.weight"}},
    {"surplus tensor",
     "",
     "choir forward surplus tokens.npy",
     1,
     {"surplus/model.safetensors", "layers.7.surplus.weight"}},
    {"tensor of the wrong shape",
     "",
     "choir forward shape tokens.npy",
     1,
     {"shape/model.safetensors", "layers.1.moe.router.weight", "[4,32]"}},
    {"tensor of the wrong type",
     "",
     "choir forward type tokens.npy",
     1,
     {"type/model.safetensors", "final_norm.weight"}},
    {"token beyond the vocabulary", "", "choir forward ckpt far.npy", 1, {"32000", "position 0", "320"}},
    {"one file for two outputs",
     "",
     "choir forward ckpt tokens.npy --logits out --gradients out",
     2,
     {"--logits and --gradients both name out"}},
    {"tokens of the wrong rank", "", "choir forward ckpt flat.npy", 1, {"flat.npy"}},
    {"run that is there already",
     "",
     "choir train --threads 1 --config config.json --data data --out run",
     1,
     {"run", "resume"}},
    {"resume of nothing", "", "choir train --resume --out absent", 1, {"absent"}},
    /* training */
    {"loss that is not finite", "", TRAIN "config.json --set learning_rate=1000", 1, {"step", "not finite", "weight"}},
    {"weights that are not finite",
     "mkdir -p poisoned && cp -r run/. poisoned && for c in poisoned/checkpoints/*; do cp nan/model.safetensors $c; "
     "done",
     "choir train --threads 1 --resume --out poisoned --set steps=20",
     1,
     {"none of 2 checkpoints", "final_norm.weight"}},
    /* the machine */
    {"unwritable directory",
     "",
     "choir train --threads 1 --config config.json --data data --out /proc/run",
     1,
     {"/proc/run"}},
    {"directory below a file",
     "",
     "choir init config.json --set vocab_size=320 --out corpus.txt/ckpt",
     1,
     {"corpus.txt/ckpt"}},
    {"file size limit",
     "",
     "trap '' XFSZ; ulimit -f 40; choir train --threads 1 --config config.json --data data --out new",
     1,
     {"model.safetensors"}},
};

/* Sums of everything that must not change. */
#define INVENTORY "find run data ckpt corpus.txt tokenizer.model config.json -type f ! -name lock | sort | xargs cksum"

static int check(const refusal *r) {
  int failures = 0;
  program_must("rm -rf new");
  if (*r->prepare) program_must("%s", r->prepare);
  int status = program_run("%s", r->command);
  if (status != r->status) failures++, fprintf(stderr, "%s: status %d, wanted %d\n", r->what, status, r->status);
  for (int i = 0; i < 4 && r->words[i]; i++)
    if (!strstr(program_output, r->words[i]))
      failures++, fprintf(stderr, "%s: nothing about '%s'\n", r->what, r->words[i]);
  if (failures) fprintf(stderr, "  %s\n  said: %s\n", r->command, program_output);
  if (program_run(INVENTORY " | diff before.txt -"))
    failures++, fprintf(stderr, "%s: earlier results have changed:\n%s", r->what, program_output);
  if (program_run("test ! -e new || test -e new/config.json || { find new; exit 1; }")) /* a run, or nothing */
    failures++, fprintf(stderr, "%s: leaves\n%s", r->what, program_output);
  return failures;
}

static void refused(void **state) {
  int failures = 0;
  program_must(INVENTORY " >before.txt");
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) failures += check(&refusals[i]);
  assert_int_equal(failures, 0);
}

/* While a run is going on nobody else may touch its directory. */
static void second_run(void **state) {
  pid_t first = program_start(
      "exec \"$CHOIR\" train --threads 1 --config config.json --data data --out busy --set steps=1000000", "busy.txt");
  for (int i = 0; i < 1000 && access("busy/checkpoints/00000007", F_OK); i++) usleep(10000);
  char number[32];
  snprintf(number, sizeof number, "%d", (int)first);
  static const char *const commands[] = {"choir train --threads 1 --config config.json --data data --out busy",
                                         "choir train --threads 1 --resume --out busy"};
  int status[2], named[2];
  for (int i = 0; i < 2; i++) {
    status[i] = program_run("%s", commands[i]);
    named[i] = strstr(program_output, "busy") && strstr(program_output, number);
  }
  int alive = !test_signal(first, SIGINT);
  assert_int_equal(program_wait(first), 3);
  assert_true(alive);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(status[i], 1);
    if (!named[i]) fail_msg("the process that holds the directory is not named: %s", program_output);
  }
}

/* A value that is not finite is refused wherever it stands, a threshold or an expert that the prompt may never reach,
 * by every verb alike; whoever wants to look at it can. */
static void values_not_finite(void **state) {
  static const char *const verbs[][2] = {{"generate", "--prompt ka --max-tokens 2"},
                                         {"eval", "--data data --sequences 2"},
                                         {"stats", "--text corpus.txt --tokens 64"},
                                         {"probe", "--batch 2 --length 8"},
                                         {"forward", "tokens.npy"}};
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
    program_refuses(1, "tensor 'layers.1.moe.thresholds': element 2 is -inf", "choir %s endless %s", verbs[i][0],
                    verbs[i][1]);
    program_refuses(1, "tensor 'layers.1.moe.experts.w2': element 8191 is nan", "choir %s expert %s", verbs[i][0],
                    verbs[i][1]);
  }
  program_must("choir generate endless --prompt ka --max-tokens 2 --unchecked");
}

enum change { MISSING, SURPLUS, SHAPE, TYPE, NOT_FINITE, THRESHOLD, EXPERT };

/* DIRECTORY: a checkpoint as `from`, with one tensor changed; checksummed as choir itself would. */
static void damage(const char *from, const char *directory, enum change change) {
  char command[256], path[256];
  choir_tensors *file;
  choir_tensor t[64];
  int count = 0;
  snprintf(command, sizeof command, "mkdir %s && cp %s/config.json %s", directory, from, directory);
  program_must("%s", command);
  snprintf(path, sizeof path, "%s/model.safetensors", from);
  test_ok(choir_tensors_load(path, 1, &file));
  static float extra[8], bad[32] = {NAN}, endless[4] = {0, 0, -INFINITY, 0};
  float *copy = NULL;
  for (int i = 0; i < choir_tensors_count(file); i++) {
    t[count] = *choir_tensors_at(file, i);
    int router = !strcmp(t[count].name, "layers.1.moe.router.weight"),
        norm = !strcmp(t[count].name, "final_norm.weight");
    if (router && change == SHAPE) t[count].shape[0] = 4, t[count].shape[1] = 32;
    if (norm && change == TYPE) t[count].dtype = CHOIR_I32;
    if (norm && change == NOT_FINITE) t[count].data = bad;
    if (!strcmp(t[count].name, "layers.1.moe.thresholds") && change == THRESHOLD) t[count].data = endless;
    if (!strcmp(t[count].name, "layers.1.moe.experts.w2") && change == EXPERT) {
      if (!(copy = malloc(t[count].bytes))) abort();
      memcpy(copy, t[count].data, t[count].bytes);
      copy[t[count].bytes / sizeof *copy - 1] = NAN;
      t[count].data = copy;
    }
    count += !(router && change == MISSING);
  }
  if (change == SURPLUS)
    t[count++] = (choir_tensor){
        .name = "layers.7.surplus.weight", .dtype = CHOIR_F32, .dims = 1, .shape = {8}, .data = extra, .bytes = 32};
  snprintf(path, sizeof path, "%s/model.safetensors", directory);
  test_ok(choir_tensors_write(path, t, count, NULL));
  choir_tensors_free(file);
  free(copy);
}

static int setup(void **state) {
  int32_t ids[32] = {1, 2, 3}, far[32] = {32000};
  ch_npy array = {.type = CH_NPY_INT32, .dims = 2, .shape = {2, 16}, .data = ids};
  if (program_setup(state)) return -1;
  program_must("choir train --threads 1 --config config.json --data data --out run --set steps=14 --set eval_every=0");
  program_must("choir init config.json --vocab-size 320 --out ckpt");
  test_ok(ch_npy_write("tokens.npy", &array));
  array.data = far;
  test_ok(ch_npy_write("far.npy", &array));
  array.dims = 1;
  test_ok(ch_npy_write("flat.npy", &array));
  damage("ckpt", "missing", MISSING);
  damage("ckpt", "surplus", SURPLUS);
  damage("ckpt", "shape", SHAPE);
  damage("ckpt", "type", TYPE);
  damage("run/checkpoints/00000014", "nan", NOT_FINITE);
  damage("run/checkpoints/00000014", "endless", THRESHOLD);
  damage("run/checkpoints/00000014", "expert", EXPERT);
  program_must("for c in nan endless expert; do cp tokenizer.model $c; done");
  program_must("choir forward ckpt tokens.npy"); /* what is damaged above works when whole */
  return 0;
}

TEST_MAIN(setup, program_directory_remove, refused, second_run, values_not_finite)
