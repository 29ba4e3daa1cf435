/* Interrupted runs. Training killed at random instants and resumed must leave the same bytes as a run that was never
 * stopped; and no byte of a checkpoint or shard may change unnoticed. */
#include "base/machine.h"
#include "choir/choir.h"
#include "program.h"

enum { STEPS = 84 }; /* of every run here; the directory of the last checkpoint is 00000084 */

static void same_file(const char *a, const char *b) { assert_true(program_same(a, b)); }

static void same_results(const char *a, const char *b) { assert_true(program_same_runs(a, b, STEPS)); }

/* A router that draws random numbers, two micro-batches a step, a rate that changes: everything that resuming could
 * forget. */
#define RESUME "exec \"$CHOIR\" train --threads 1 --resume --out killed"
#define FRESH                                                                                         \
  "exec \"$CHOIR\" train --threads 1 --config config.json --data data --set router.name=gshard_top2 " \
  "--set router.random_second=true --set accumulate=2 --set warmup_steps=40 --set clip_norm=1 --set steps=84 --out "

/* Kills the run at a random instant: while it starts, or around a checkpoint, in the steps between two or in the middle
 * of saving. Whether it was still alive to be killed. */
static int kill_at_random(pid_t child, int attempt, double startup, double interval) {
  double u = ch_rng_uniform(ch_rng_make((uint64_t)getpid(), CH_STREAM_TEST, 5), (uint64_t)attempt);
  if (attempt % 4 == 3)
    program_nap(u * startup);
  else if (program_wait_for_checkpoint(child, "killed", program_newest("killed")))
    program_nap(u * 2 * interval);
  test_signal(child, SIGKILL);
  int status = program_wait(child);
  if (status != 0 && status != 128 + SIGKILL) {
    size_t size = 0;
    fail_msg("status %d of a run that was to be killed: %s", status, program_read("killed.txt", &size));
  }
  return status != 0;
}

static void killed_at_random_instants(void **state) {
  double begin = ch_machine_seconds();
  pid_t whole = program_start(FRESH "whole", "whole.txt");
  program_wait_for_checkpoint(whole, "whole", 0);
  double first = ch_machine_seconds();
  if (program_wait(whole)) {
    size_t size = 0;
    fail_msg("the run that is not stopped: %s", program_read("whole.txt", &size));
  }
  assert_int_equal(program_newest("whole"), STEPS);
  double interval = (ch_machine_seconds() - first) / (STEPS / 7 - 1),
         startup = first - begin - interval; /* a checkpoint every 7 steps */

  int kills = 0;
  for (int attempt = 0; kills < 5 && attempt < 40; attempt++) {
    /* A machine that has less to do now than when it was timed comes to the end before it is killed: once more. */
    if (program_newest("killed") >= STEPS) program_must("rm -r killed");
    kills += kill_at_random(program_start(access("killed/config.json", F_OK) ? FRESH "killed" : RESUME, "killed.txt"),
                            attempt, startup, interval);
  }
  assert_in_range(kills, 3, 100);
  program_must("choir train --threads 2 --resume --out killed");
  same_results("whole", "killed");
  program_must("! find killed | grep choir-tmp-"); /* nothing half-written is left */
}

/* Ctrl-C finishes the step, saves and exits 3; going on from there is no different either. */
static void interrupted(void **state) {
  pid_t child = program_start(FRESH "stopped", "stopped.txt");
  program_wait_for_checkpoint(child, "stopped", 7);
  test_signal(child, SIGINT);
  assert_int_equal(program_wait(child), 3);
  assert_in_range(program_newest("stopped"), 14, STEPS);
  /* Its end is evaluated, which going on takes back. */
  program_must(
      "test \"$(grep '\"eval\"' stopped/metrics.jsonl | tail -n 1 | grep -o '\"step\": *[0-9]*')\" = "
      "\"$(grep '\"step\": *[0-9]*' stopped/metrics.jsonl | tail -n 1 | grep -o '\"step\": *[0-9]*')\"");
  program_must("choir train --threads 1 --resume --out stopped");
  same_results("whole", "stopped");
}

/* A finished run has nothing left to do, and says the same results. */
static void finished(void **state) {
  program_must("choir train --resume --out killed");
  same_results("whole", "killed");
  /* killed between a save and the removal of the checkpoint that is one too many */
  program_must("cp -r killed/checkpoints/00000084 killed/checkpoints/00000001 && choir train --resume --out killed");
  program_must("! test -e killed/checkpoints/00000001 && diff -r whole/checkpoints killed/checkpoints");
}

/* The counters beside it know how long the log was, and with it how a setting is spelt. */
static void same_optimizer(const char *a, const char *b) {
  choir_tensors *file_a, *file_b;
  test_ok(choir_tensors_load(a, 1, &file_a));
  test_ok(choir_tensors_load(b, 1, &file_b));
  int compared = 0;
  for (int i = 0; i < choir_tensors_count(file_a); i++) {
    const choir_tensor *x = choir_tensors_at(file_a, i), *y = choir_tensors_find(file_b, x->name);
    if (strncmp(x->name, "optimizer.", 10)) continue;
    assert_non_null(y);
    assert_int_equal(x->bytes, y->bytes);
    assert_memory_equal(x->data, y->data, x->bytes);
    compared++;
  }
  assert_in_range(compared, 10, 1000);
  choir_tensors_free(file_a);
  choir_tensors_free(file_b);
}

/* Without clipping every layer is updated within the backward pass; a clip that never bites keeps all gradients until
 * the end. Weights, state and log must be the same, in both optimizers and both compute types. */
static void updated_in_backward(void **state) {
  static const char *const settings[] = {"--set compute=fp32", "--set compute=bf16 --emulate-bf16",
                                         "--set optimizer=adamw --set learning_rate=0.001"};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    for (int clip = 0; clip < 2; clip++)
      program_must(
          "rm -rf %s && choir train --threads 2 --config config.json --data data --set steps=12 --set clip_norm=%s "
          "--set checkpoint_every=0 %s --out %s",
          clip ? "after" : "within", clip ? "1e20" : "0", settings[i], clip ? "after" : "within");
    same_file("within/checkpoints/00000012/model.safetensors", "after/checkpoints/00000012/model.safetensors");
    same_optimizer("within/checkpoints/00000012/state.safetensors", "after/checkpoints/00000012/state.safetensors");
    program_must("for run in within after; do grep -v '\"run\"' $run/metrics.jsonl >$run.steps; done");
    same_file("within.steps", "after.steps");
  }
}

/* Opens what the flipped file belongs to; each must refuse. */
static int load_model(const char *directory) {
  choir_model *model;
  choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
  int code = choir_model_load(directory, &run, &model, NULL);
  if (!code) choir_model_free(model);
  return code;
}

static int open_data(const char *directory) {
  choir_data *data;
  int code = choir_data_load(directory, &data);
  if (!code) choir_data_free(data);
  return code;
}

static int resume(const char *directory) {
  choir_train_options options = CHOIR_TRAIN_OPTIONS_INIT;
  options.out = directory;
  options.resume = 1;
  return choir_train(&options);
}

static void put_byte(const char *path, size_t at, int byte) {
  FILE *file = fopen(path, "r+b");
  if (!file || fseek(file, (long)at, SEEK_SET) || fputc(byte & 255, file) == EOF || fclose(file)) abort();
}

/* Flips single bits: in the first and last bytes, and anywhere. Every time a refusal that names the file. */
static void flip(const char *directory, const char *file, int (*open)(const char *), int count) {
  char path[256];
  size_t size;
  snprintf(path, sizeof path, "%s/%s", directory, file);
  char *data = program_read(path, &size);
  if (!data) fail_msg("%s is missing", path);
  test_ok(open(directory));
  ch_rng rng = ch_rng_make(11, CH_STREAM_TEST, (uint32_t)size);
  for (int i = 0; i < count; i++) {
    size_t at = i < 24   ? (size_t)i
                : i < 32 ? size - 1 - (size_t)(i - 24)
                         : (size_t)ch_rng_below(rng, (uint64_t)i, size);
    if (i % 4 == 3 && size > 4096) at = at % 4096; /* headers are short: give them their share */
    char bit = (char)(1 << ch_rng_below(rng, (uint64_t)(i + count), 8));
    put_byte(path, at, data[at] ^ bit);
    int code = open(directory);
    if (!code) fail_msg("%s: bit %#x of byte %zu flipped, and nobody noticed", path, (unsigned)(bit & 255), at);
    if (!strstr(choir_error_message(), file))
      fail_msg("%s: byte %zu: the message does not name the file: %s", path, at, choir_error_message());
    put_byte(path, at, data[at]);
  }
  test_ok(ch_file_save(path, data, size / 2));
  assert_int_not_equal(open(directory), CHOIR_OK);
  assert_non_null(strstr(choir_error_message(), file));
  test_ok(ch_file_save(path, data, size));
  test_ok(open(directory));
  free(data);
}

/* A branch of a trunk of constant rate, taken as docs/training.md says, ends where a run does that cooled by itself. */
static void branched(void **state) {
  program_must(FRESH "trunk --set train.keep_checkpoints=0");
  program_must(
      "mkdir -p branch/checkpoints && cp -r trunk/checkpoints/00000028 branch/checkpoints && "
      "cp trunk/config.json trunk/data.path trunk/metrics.jsonl branch");
  program_must("choir train --resume --out branch --set train.steps=35 --set train.cooldown_steps=7");
  program_must(FRESH "cooled --set train.steps=35 --set train.cooldown_steps=7");
  program_must(
      "cmp branch/checkpoints/00000035/model.safetensors cooled/checkpoints/00000035/model.safetensors && grep -v "
      "'\"event\": *\"run\"' branch/metrics.jsonl >branch.steps && grep -v '\"event\": *\"run\"' "
      "cooled/metrics.jsonl | cmp - branch.steps && test $(wc -l <branch.steps) -ge 35");
  program_must("! cmp -s branch/checkpoints/00000035/model.safetensors trunk/checkpoints/00000035/model.safetensors");
}

/* With --minutes the clock sets train.steps, and a run with those steps in its config has the same bytes; with a
 * cooldown of a fixed number of steps the clock only stops the run. */
static void cooled_by_the_clock(void **state) {
  program_must(FRESH "timed --set train.steps=1000000 --set train.cooldown_steps=0.25 --minutes 0.02 2>note");
  program_must("grep 'rate falls from here to the last step' note && ! grep 1000000 timed/config.json");
  program_must(
      "choir train --config timed/config.json --data data --out repeated && last=$(ls timed/checkpoints | tail -n 1) &&"
      "cmp timed/checkpoints/$last/model.safetensors repeated/checkpoints/$last/model.safetensors && "
      "grep \"\\\"steps\\\": $(echo $last | sed 's/^0*//')\" timed/config.json");
  program_must(FRESH "clocked --set train.steps=1000000 --set train.cooldown_steps=25 --minutes 0.01");
  assert_non_null(strstr(program_output, "stopped after step"));
  assert_null(strstr(program_output, "rate falls"));
  program_must("grep '\"steps\": 1000000' clocked/config.json");
  program_refuses(1, "train.cooldown_steps is 85: more than the 84 steps", FRESH "long --set train.cooldown_steps=85");
}

static void flipped_bits(void **state) {
  program_must(
      "mkdir -p copies/run/checkpoints && cp -r data copies/data && cp -r whole/checkpoints/00000084 copies/checkpoint "
      "&&"
      "cp whole/*.* copies/run && cp -r copies/checkpoint copies/run/checkpoints/00000084");
  flip("copies/checkpoint", "model.safetensors", load_model, 200);
  flip("copies/data", "text.train.shard", open_data, 200);
  flip("copies/data", "text.heldout.shard", open_data, 200);
  flip("copies/data", "tokenizer.model", open_data, 200);
  flip("copies/run", "checkpoints/00000084/state.safetensors", resume, 40);
}

/* Sound files whose counters cannot be: samples or bytes of the log below 0. */
static void counters_below_zero(void **state) {
  static const char path[] = "copies/run/checkpoints/00000084/state.safetensors";
  const int64_t below = -1;
  choir_tensor tensor[200];
  choir_tensors *file;
  test_ok(choir_tensors_load("whole/checkpoints/00000084/state.safetensors", 1, &file));
  int count = choir_tensors_count(file), spoilt = 0;
  assert_in_range(count, 10, 200);
  for (int i = 0; i < count; i++) {
    const char *name = choir_tensors_at(file, i)->name;
    if (strcmp(name, "run.samples") && strcmp(name, "run.metrics_bytes")) continue;
    memcpy(tensor, choir_tensors_at(file, 0), (size_t)count * sizeof *tensor);
    tensor[i].data = &below;
    test_ok(choir_tensors_write(path, tensor, count, NULL));
    test_fails(resume("copies/run"), CHOIR_ERROR_FORMAT, name);
    spoilt++;
  }
  assert_int_equal(spoilt, 2);
  choir_tensors_free(file);
}

TEST_MAIN(program_setup, program_directory_remove, killed_at_random_instants, interrupted, finished,
          updated_in_backward, branched, cooled_by_the_clock, flipped_bits, counters_below_zero)
