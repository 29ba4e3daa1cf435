/* A run is the same after any mixture of --resume, --set, kill and resume again; and its newest checkpoint is found. */
#include <sys/stat.h>

#include "choir/choir.h"
#include "model/config.h"
#include "program.h"

#define TRAIN "choir train --threads 1 "
#define FRESH TRAIN "--config config.json --data data --set eval_every=0 --set checkpoint_every=3 "

/* The step of the last line of a log that has one. */
static int last_step(const char *run) {
  program_must("grep -o '\"step\":[0-9]*' %s/metrics.jsonl | tail -1 | cut -d: -f2", run);
  return atoi(program_output);
}

static double request(const char *run, const char *key) {
  char path[256];
  json_error_t error;
  snprintf(path, sizeof path, "%s/config.json", run);
  json_t *root = json_load_file(path, 0, &error);
  double value = root ? json_at(json_object_get(root, "train"), key) : -1;
  json_decref(root);
  return value;
}

/* Waits for a text in a file. In this process: on a busy machine a shell comes when all steps are done. */
static void wait_for(const char *path, const char *text) {
  for (int found = 0; !found; program_nap(0.0005)) {
    size_t size = 0;
    char *bytes = program_read(path, &size);
    found = bytes && strstr(bytes, text);
    free(bytes);
  }
}

/* Kills a command that has begun and done step 7. */
static void kill_at_work(const char *run, const char *command) {
  char whole[512], metrics[256];
  snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", run);
  snprintf(whole, sizeof whole, "exec \"$CHOIR\" train --threads 1 --resume --out %s %s", run, command);
  unlink("killed.txt");
  pid_t child = program_start(whole, "killed.txt");
  wait_for("killed.txt", "\nstep");
  wait_for(metrics, "\"step\":7,");
  test_signal(child, SIGKILL);
  assert_int_equal(program_wait(child), 128 + SIGKILL);
}

/* The settings of the last command are saved before the first step: they survive a kill before the first checkpoint. */
static void settings_outlive_a_kill(void **state) {
  program_must(FRESH "--set steps=6 --out run && cp -r run straight");
  kill_at_work("run", "--set steps=500 --set checkpoint_every=0");
  assert_int_equal((int)request("run", "steps"), 500);
  assert_true(last_step("run") > 6); /* above a checkpoint of step 6 */
  program_must(TRAIN "--resume --out run");
  assert_non_null(strstr(program_output, "done: 500 steps"));
  program_must(TRAIN "--resume --set steps=500 --set checkpoint_every=0 --out straight");
  assert_true(program_same_runs("straight", "run", 500));
}

/* Wishes add up, and a plain resume takes them all; a log has a line "run" where they changed. */
static void settings_accumulate(void **state) {
  program_must(FRESH "--set steps=6 --out sum");
  kill_at_work("sum", "--set steps=4000 --set checkpoint_every=0");
  kill_at_work("sum", "--set learning_rate=0.01");
  kill_at_work("sum", "");
  assert_int_equal((int)request("sum", "steps"), 4000);
  assert_true(fabs(request("sum", "learning_rate") - 0.01) < 1e-12);
  program_must(TRAIN "--resume --out sum --set steps=12 && grep -c '\"event\":\"run\"' sum/metrics.jsonl | grep -qx 2");
  program_must("test $(grep -n '\"event\":\"run\"' sum/metrics.jsonl | tail -1 | cut -d: -f1) = 9"); /* behind step 6 */
  program_must(TRAIN "--resume --out sum --set steps=12");
  assert_non_null(strstr(program_output, "nothing left to do"));
}

/* Tokens in metrics are the sum over all steps, also if --resume changes the tokens of a step. */
static void tokens_of_other_steps(void **state) {
  program_must(FRESH "--set steps=2 --out wider && " TRAIN "--resume --out wider --set steps=3 --set accumulate=2");
  program_must(
      "grep -q '\"step\":2,.*\"tokens\":256}' wider/metrics.jsonl && "
      "grep -q '\"step\":3,.*\"tokens\":512}' wider/metrics.jsonl");
}

/* Nothing is left to do: the log ends where the checkpoint stands all the same. */
static void logs_end_where_the_checkpoint_stands(void **state) {
  program_must(FRESH "--set steps=6 --out cut");
  kill_at_work("cut", "--set steps=4000 --set checkpoint_every=0");
  program_must(TRAIN "--resume --out cut --set steps=6");
  assert_non_null(strstr(program_output, "nothing left to do"));
  assert_int_equal(last_step("cut"), 6);
}

/* Half a line, as a kill or a power failure leaves it: in the log of results it lies behind the checkpoint, in that of
 * times it goes. */
static void incomplete_lines_are_removed(void **state) {
  program_must(FRESH
               "--set steps=6 --out torn && cp -r torn torn0 && printf '{\"event\":\"st' | tee -a torn/metrics.jsonl "
               ">>torn/timing.jsonl");
  program_must(TRAIN "--resume --out torn --set steps=9 && " TRAIN
                     "--resume --out torn0 --set steps=9 && cmp torn/metrics.jsonl torn0/metrics.jsonl && ! grep 'st$' "
                     "torn/timing.jsonl && choir report torn");
  program_must("cp -r torn0 odd && sed -i 's/\"loss\"/\"lossy\"/' odd/metrics.jsonl");
  program_refuses(1, "no line ends at byte", TRAIN "--resume --out odd");
}

static void a_config_that_cannot_be_read(void **state) {
  program_must(FRESH "--set steps=6 --out blank && : >blank/config.json && " TRAIN "--resume --out blank");
  assert_non_null(strstr(program_output, "note: blank/config.json"));
  assert_non_null(strstr(program_output, "nothing left to do"));
  assert_int_equal((int)request("blank", "steps"), 6);
}

/* ---- data that others write meanwhile */

typedef struct meddler {
  const char *shard;
  int how; /* 0: foreign bytes, 1: the same under the old time, 2: another length, 3: another file of that name */
} meddler;

static int meddle(void *context, const choir_event *e) {
  const meddler *m = context;
  struct stat before;
  char foreign[4096];
  memset(foreign, 0xFF, sizeof foreign);
  if (e->kind != CHOIR_EVENT_STEP || e->step != 2) return 0;
  assert_int_equal(stat(m->shard, &before), 0);
  if (m->how == 3) {
    program_must("cp %s x.shard && dd if=/dev/zero of=x.shard conv=notrunc bs=64 seek=2 count=9 2>&1 && mv x.shard %s",
                 m->shard, m->shard);
    return 0;
  }
  int fd = open(m->shard, O_WRONLY | (m->how == 2 ? O_APPEND : 0));
  assert_true(fd >= 0);
  for (off_t at = 128; at < before.st_size; at += (off_t)sizeof foreign) {
    size_t size = (size_t)(before.st_size - at) < sizeof foreign ? (size_t)(before.st_size - at) : sizeof foreign;
    assert_int_equal(m->how == 2 ? write(fd, foreign, 2) : pwrite(fd, foreign, size, at),
                     m->how == 2 ? 2 : (ssize_t)size);
    if (m->how == 2) break;
  }
  if (m->how == 1) assert_int_equal(futimens(fd, (struct timespec[]){before.st_atim, before.st_mtim}), 0);
  close(fd);
  return 0;
}

/* A shard is mapped: what somebody writes into its file is read. The run ends with a word, and saves nothing of it. */
static void data_that_change_meanwhile(void **state) {
  for (int how = 0; how < 4; how++) {
    choir_config config;
    meddler m = {"changed/text.train.shard", how};
    choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
    program_must("rm -rf changed moving && cp -r data changed");
    test_ok(ch_config_load("config.json", &config));
    config.train.steps = 5, config.train.eval_every = 0, config.train.checkpoint_every = 1;
    o.config = &config, o.data = "changed", o.out = "moving", o.event = meddle, o.context = &m;
    if (how == 3) {
      test_ok(choir_train(&o));
      continue;
    }
    test_fails(choir_train(&o), CHOIR_ERROR_FORMAT, "changed/text.train.shard: was changed while it was read");
    assert_true(program_newest("moving") < (how == 1 ? 4 : 3));
  }
}

/* The step at which a run is stopped is evaluated, and commands load its checkpoint if it is the best; the resumed run
 * equals one that was not stopped. */
static void the_step_it_was_stopped_at_may_be_the_best(void **state) {
#define EVALUATIONS "--set eval_every=2 --set checkpoint_every=0 --set cooldown_steps=0 "
  program_must(FRESH EVALUATIONS "--set steps=7 --out unhalted && " FRESH EVALUATIONS "--set steps=4 --out halted");
  program_must("choir train --threads 1 --resume --out halted --set steps=7 --minutes 1e-9 >said 2>&1; cat said");
  program_must("grep -q 00000005 halted/best && ! grep 'best checkpoint is that' said");
  program_must(
      "choir train --threads 1 --resume --out halted && for f in best checkpoints/00000007/model.safetensors; do "
      "cmp unhalted/$f halted/$f; done");
#undef EVALUATIONS
}

/* Whatever a person or a batch system sends saves the run; what the parent ignores is ignored. */
static void signals_save(void **state) {
  static const int asked[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
  for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
    program_must("rm -rf sent");
    pid_t child = program_start(
        "exec \"$CHOIR\" train --threads 1 --config config.json --data data --set steps=1000000 "
        "--set checkpoint_every=0 --set eval_every=0 --out sent",
        "sent.txt");
    wait_for("sent/metrics.jsonl", "\"step\":3,");
    kill(child, asked[i]);
    assert_int_equal(program_wait(child), 3);
    assert_true(program_newest("sent") >= 3);
  }
  program_must("rm -rf sent");
  pid_t child = program_start(
      "trap '' INT TERM HUP USR1 USR2 XCPU; exec \"$CHOIR\" train --threads 1 --config "
      "config.json --data data --set steps=400 --out sent",
      "sent.txt");
  wait_for("sent/metrics.jsonl", "\"step\":3,");
  for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) kill(child, asked[i]);
  assert_int_equal(program_wait(child), 0);
  assert_int_equal(program_newest("sent"), 400);
}

/* ---- which checkpoint is the newest */

static void foreign_names_are_passed_over(void **state) {
  program_must(FRESH
               "--set steps=6 --set keep_checkpoints=0 --out names && cp -r names other && cd names/checkpoints && "
               "mkdir 20240101 "
               "20250101 99999999999999999999999 0000009 && echo x >20250101/notes");
  program_must(TRAIN "--resume --set steps=9 --out names && " TRAIN "--resume --set steps=9 --out other");
  assert_true(program_same_runs("other", "names", 9));
  program_must("rm names/best; choir eval names --data data --sequences 4"); /* else the others are not looked at */
  const char *const told[] = {"20240101", "20250101", "99999999999999999999999", "0000009"};
  for (int i = 0; i < 4; i++)
    if (!strstr(program_output, told[i])) fail_msg("nothing is said of %s: %s", told[i], program_output);
  program_must("test -d names/checkpoints/20240101 && cat names/checkpoints/20250101/notes");
  program_must(FRESH
               "--set steps=3 --out begun && mv begun/checkpoints/00000003 begun/checkpoints/20240101 && cp "
               "begun/metrics.jsonl begun.metrics");
  program_refuses(1, "holds step 3", TRAIN "--resume --out begun"); /* and not from the beginning, log and all */
  program_must("cmp begun/metrics.jsonl begun.metrics");
}

/* Damaged in any of its files: the one before is resumed from, and the name makes room for the new one. */
static void damaged_ones_are_passed_over(void **state) {
  static const char *const damages[] = {"rm state.safetensors", "truncate -s 1000 model.safetensors",
                                        "printf x | dd of=state.safetensors conv=notrunc bs=1 seek=9000",
                                        "echo {} >config.json", "rm -r *"};
  program_must(FRESH "--set steps=12 --set keep_checkpoints=0 --out sound");
  for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
    program_must("rm -rf hurt && cp -r sound hurt && cd hurt/checkpoints/00000012 && %s", damages[i]);
    program_must(TRAIN "--resume --out hurt");
    if (!strstr(program_output, "00000012") || !strstr(program_output, "passed over"))
      fail_msg("nothing is said of it: %s", program_output);
    assert_true(program_same_runs("sound", "hurt", 12));
    program_must("test -d hurt/checkpoints/00000012.passed-over");
  }
  /* One that is passed over does not count among those to keep: the one that was taken stays. */
  program_must(
      "rm -rf hurt && cp -r sound hurt && truncate -s 1000 hurt/checkpoints/00000012/model.safetensors && " TRAIN
      "--resume --set steps=9 --set keep_checkpoints=1 --out hurt && cd hurt/checkpoints && "
      "test -d 00000009 && test -d 00000012 && ! test -e 00000006");
  program_must(
      "rm -rf hurt && cp -r sound hurt && cd hurt/checkpoints && for c in 000000*; do truncate -s 100 "
      "$c/model.safetensors; done; true");
  program_refuses(1, "none of 4 checkpoints can be resumed from", TRAIN "--resume --set steps=20 --out hurt");
  program_refuses(1, "none of 4 checkpoints can be read", "choir eval hurt --data data");
  choir_model *model; /* the error names the newest, which is cut short, not those without weights */
  program_must("cd hurt/checkpoints && rm 0000000[369]/model.safetensors");
  test_fails(choir_model_load("hurt", NULL, &model, NULL), CHOIR_ERROR_FORMAT,
             "none of 4 checkpoints can be read; the newest");
  program_must("cd hurt/checkpoints && rm -r 0000000[369]");
  test_fails(choir_model_load("hurt", NULL, &model, NULL), CHOIR_ERROR_FORMAT,
             "hurt/checkpoints/00000012/model.safetensors");
  assert_null(strstr(choir_error_message(), "none of"));
}

/* There is room for a name and the zero behind it, or nothing is written. */
static void finds_within_the_room(void **state) {
  static const char name[] = "sound/checkpoints/00000012";
  char out[sizeof name + 1];
  memset(out, 7, sizeof out);
  test_fails(choir_checkpoint_find("sound", out, sizeof name - 1), CHOIR_ERROR_ARGUMENT, "the name needs 27 bytes");
  for (size_t i = 0; i < sizeof out; i++) assert_int_equal(out[i], 7);
  test_ok(choir_checkpoint_find("sound", out, sizeof name));
  assert_string_equal(out, name);
  assert_int_equal(out[sizeof name], 7);
}

/* Weights that are not finite are the checkpoint's fault, as damage is. */
static void readers_pass_over_what_is_not_finite(void **state) {
  static const char path[] = "blown/checkpoints/00000012/model.safetensors";
  float values[32] = {NAN};
  choir_tensors *t;
  program_must("cp -r sound blown");
  test_ok(choir_tensors_load(path, 1, &t));
  int count = choir_tensors_count(t);
  choir_tensor *tensor = calloc((size_t)count, sizeof *tensor);
  for (int i = 0; i < count; i++) {
    tensor[i] = *choir_tensors_at(t, i);
    if (!strcmp(tensor[i].name, "final_norm.weight")) tensor[i].data = values;
  }
  test_ok(choir_tensors_write("blown.safetensors", tensor, count, NULL));
  free(tensor);
  choir_tensors_free(t);
  program_must("mv blown.safetensors %s; choir eval blown --data data --sequences 4 --json 2>&1", path);
  assert_non_null(strstr(program_output, "final_norm.weight"));
  assert_non_null(strstr(program_output, "00000009 is taken, the newest that is whole"));
}

static void readers_take_the_one_before(void **state) {
  program_must("rm -rf hurt && cp -r sound hurt && truncate -s 1000 hurt/checkpoints/00000012/model.safetensors");
  program_must(
      "choir eval hurt --data data --sequences 4 --json | grep '\"loss\"' >a; choir eval "
      "sound/checkpoints/00000009 --data data --sequences 4 --json | grep '\"loss\"' >b; cmp a b");
  program_must("choir generate hurt --prompt kalo --max-tokens 4 2>&1 | grep 'note: .*00000012.*passed over'");
  program_must(
      "choir generate hurt --prompt kalo --max-tokens 4 2>&1 | grep '00000009 is taken, the newest that is whole'");
  program_refuses(1, "00000012/model.safetensors", "choir eval hurt/checkpoints/00000012 --data data");
  /* A damaged checkpoint that the user names is refused; the message names the newest older one that is whole. */
  assert_non_null(strstr(program_output, "hurt/checkpoints/00000009 is whole, and 'choir train --resume --out hurt'"));
  program_refuses(1, "hurt/checkpoints/00000003 is whole",
                  "truncate -s 1000 hurt/checkpoints/00000006/model.safetensors; choir eval hurt/checkpoints/00000006 "
                  "--data data");
  program_refuses(1, "hurt/checkpoints/00000003 is whole",
                  "rm hurt/checkpoints/00000009/state.safetensors; choir eval hurt/checkpoints/00000012 --data data");
}

/* A run that keeps one checkpoint removes the others under whoever reads them. */
static void checkpoints_vanish_under_readers(void **state) {
  pid_t child = program_start(
      "exec \"$CHOIR\" train --threads 1 --config config.json --data data --set eval_every=0 --set steps=1000000 --set "
      "checkpoint_every=1 --set keep_checkpoints=1 --out busy",
      "busy.txt");
  while (program_run("ls busy/checkpoints | grep -q 0")) usleep(2000);
  for (int i = 0; i < 150; i++) {
    choir_model *model;
    choir_tokenizer *tokenizer;
    test_ok(choir_model_load("busy", NULL, &model, &tokenizer));
    choir_model_free(model);
    choir_tokenizer_free(tokenizer);
  }
  test_signal(child, SIGINT);
  assert_int_equal(program_wait(child), 3);
}

/* ---- what is not choir's */

static void nothing_of_anybody_else_is_removed(void **state) {
  program_must(
      FRESH
      "--set steps=9 --set keep_checkpoints=0 --out mine && cd mine/checkpoints && echo mine >00000003/notes && mv "
      "00000006 ../six && ln -s ../six 00000006");
  program_must(TRAIN "--resume --set steps=15 --set keep_checkpoints=1 --out mine");
  program_must(
      "cd mine/checkpoints && test -f 00000003/notes && test -L 00000006 && test -f ../six/config.json && best=$(cat "
      "../best) && for step in 00000009 00000012; do test $step = $best || ! test -e $step; done && test -d 00000015");
}

static void files_that_are_in_the_way(void **state) {
  program_must("mkdir taken && cp config.json taken/config.json");
  program_refuses(1, "taken/config.json: exists and was not written by choir", FRESH "--out taken");
  program_must("cmp config.json taken/config.json && rm -r taken/* && echo 'do not touch' >taken/lock");
  program_refuses(1, "taken/lock: is there, and the directory holds no run", FRESH "--out taken");
  program_must("grep -qx 'do not touch' taken/lock");
  program_must(
      FRESH
      "--set steps=1 --out again && rm -r again/metrics.jsonl again/timing.jsonl again/best again/checkpoints && " FRESH
      "--set steps=2 --out again"); /* a run that never began */
}

TEST_MAIN(program_setup, program_directory_remove, settings_outlive_a_kill, settings_accumulate, tokens_of_other_steps,
          logs_end_where_the_checkpoint_stands, data_that_change_meanwhile, incomplete_lines_are_removed,
          a_config_that_cannot_be_read, the_step_it_was_stopped_at_may_be_the_best, signals_save,
          foreign_names_are_passed_over, damaged_ones_are_passed_over, readers_take_the_one_before,
          readers_pass_over_what_is_not_finite, finds_within_the_room, checkpoints_vanish_under_readers,
          nothing_of_anybody_else_is_removed, files_that_are_in_the_way)
