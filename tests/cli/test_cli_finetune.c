/* choir finetune, as a user runs it: a task that can be learned is, runs go on bit for bit, the best checkpoint is what
 * choir score takes, and what is wrong is refused. */
#include "made_up_task.h"

static int set_up(void **state) {
  if (program_setup(state)) return -1;
  test_ok(ch_file_save("mine.json", made_up_task, sizeof made_up_task - 1));
  if (program_run("set -e; mkdir set; choir train --config config.json --data data --out pre --threads 1 "
                  "--set train.steps=30 --set checkpoint_every=0"))
    return -1;
  made_up_rows("set/train.tsv", 203, 1);
  made_up_rows("set/dev.tsv", 60, 2);
  return 0;
}

#define TUNE "choir finetune --init-from pre --task mine.json --data set --threads 1 --set batch_sequences=8 "
#define FRESH \
  TUNE "--set train.learning_rate=0.03 --set accumulate=2 --set dropout=0.05 --set eval_every=5 --epochs 6 --out "

/* Everything right, by thresholds and by the batch, and choir score agrees with what the run says; a text's prediction
 * does not depend on the other texts of its batch. */
static void learns(void **state) {
  program_must(TUNE
               "--set train.learning_rate=0.01 --epochs 30 --out run --patience 4 >text; cat text; "
               "grep -q 'padding' text && grep -q 'best dev accuracy of mine: 100.00 %%' text");
  program_must("cat run/result.json");
  json_t *root = program_json(), *own = json_object_get(root, "own"), *batch = json_object_get(root, "batch");
  assert_true(json_at(own, "accuracy") == 1 && json_at(own, "f1") == 1 && json_at(own, "matthews") > 1 - 1e-12);
  assert_true(json_at(batch, "accuracy") > 0.9 && json_at(own, "labelled") == 60);
  assert_string_equal(json_string_value(json_object_get(own, "routing")), "threshold");
  int best = (int)json_at(root, "step");
  json_decref(root);
  program_must("test $(cat run/best) -eq %d; choir score run --task mine.json --data set --json 2>/dev/null", best);
  root = program_json();
  assert_true(json_at(json_object_get(root, "threshold"), "correct") == 60);
  json_decref(root);
  program_must(
      "choir score run --task mine.json --data set --slots 1 --chunk 7 --out a.tsv >text;"
      "choir score run --task mine.json --data set --slots 9 --threads 2 --out b.tsv >text; cmp a.tsv b.tsv");
  program_must("tail -n 1 run/metrics.jsonl; ls run/checkpoints"); /* 4 evaluations of an epoch each behind the best */
  char last[32];
  snprintf(last, sizeof last, "\"step\":%d,", best + 4 * 26);
  if (!strstr(program_output, last) && !strstr(program_output, "\"step\":780,"))
    fail_msg("no %s in: %s", last, program_output);
  program_must(
      "cp run/metrics.jsonl ended; choir finetune --resume --out run >text; grep -q '100.00' text &&"
      "cmp ended run/metrics.jsonl"); /* it has waited long enough, and knows */
}

/* Killed when its second and its fourth checkpoint are there, and resumed: the same bytes as without. The second time
 * the newest checkpoint is damaged, and the one before it serves. */
static void resumes(void **state) {
  program_must(FRESH "whole --set checkpoint_every=7");
  pid_t child = program_start(
      "exec \"$CHOIR\" finetune --init-from pre --task mine.json --data set --threads 1 --set "
      "batch_sequences=8 --set train.learning_rate=0.03 --set accumulate=2 --set dropout=0.05 --set eval_every=5 "
      "--set checkpoint_every=7 --epochs 6 --out killed",
      "killed.txt");
  for (int round = 0; round < 2; round++) {
    if (!program_wait_for_checkpoint(child, "killed", 10 + 20 * round)) fail_msg("it ended before it was killed");
    test_signal(child, SIGKILL);
    assert_int_equal(program_wait(child), 128 + SIGKILL);
    if (round) program_must("cd killed/checkpoints && truncate -s -1 $(ls | tail -n 1)/state.safetensors");
    child = program_start("exec \"$CHOIR\" finetune --resume --out killed --threads 2", "killed.txt");
  }
  assert_int_equal(program_wait(child), 0);
  program_must(
      "for f in metrics.jsonl result.json best config.json $(cd whole && find checkpoints -type f); do "
      "cmp whole/$f killed/$f || exit 1; done; ! find killed | grep tmp-");
  program_must("grep 'state.safetensors.* passed over' killed.txt");
}

/* With another number of micro-batches a step, the epoch goes on where it was: its tokens are those of every example.
 */
static void resumes_within_an_epoch(void **state) {
  program_must(
      "sum() { grep '\"step\",' $1/metrics.jsonl | sed 's/.*\"tokens\":\\([0-9]*\\).*/\\1/' |"
      "awk '{ all += $1 } END { print all }'; };" TUNE "--set steps=26 --out plain >text;" TUNE
      "--set accumulate=2 --set steps=7 --out parted >text;"
      "choir finetune --resume --out parted --set accumulate=1 --set steps=19 >text; sum plain; sum parted;"
      "test $(sum plain) -gt 1000 && test $(sum plain) -eq $(sum parted)");
}

/* What a run that could not save its best evaluation for a while says about the best one, everywhere: it is a step
 * whose checkpoint exists, which the last evaluation, RUN/best, the result and `choir score` agree about. */
static void tells_the_best(void) {
  program_must(
      "set -e; best=$(cat full/best); test -f full/checkpoints/$best/model.safetensors;"
      "step=$(echo $best | sed 's/^0*//'); grep -q \"\\\"step\\\": $step,\" full/result.json;"
      "grep '\"dev\"' full/metrics.jsonl | tail -n 1 | grep -q \"\\\"best_step\\\":$step}\";"
      "grep -q \", at step $step (majority\" full.txt; choir score full --task mine.json --data set --json >a 2>said;"
      "choir score full/checkpoints/$best --task mine.json --data set --json >b; cmp a b; test ! -s said");
}

/* Calls that fail for a while: the run goes on in memory, saves when there is room again, and ends as without; unless
 * the best evaluation fell into that while: then the best one before it stays, which is said. */
static void a_disk_that_is_full(void **state) {
  static const int fails[][2] = {{200, 5}, {520, 30}, {700, 30}, {40, 30}, {400, 40}, {440, 30}};
  int as_without = 0, forgotten = 0;
  if (!*CHOIR_SHIM) skip();
  for (int i = 0; i < 6; i++) {
    program_must(
        "rm -rf full; faulty write:28:%d:%d finetune --init-from pre --task mine.json --data set --threads 1 --set "
        "batch_sequences=8 --set train.learning_rate=0.03 --set accumulate=2 --set dropout=0.05 --set eval_every=5 "
        "--set checkpoint_every=7 --epochs 6 --out full >full.txt 2>&1",
        fails[i][0], fails[i][1]);
    program_must("grep -q 'there is room on the disk again' full.txt && cmp whole/config.json full/config.json");
    int lost = !program_run("grep 'the best evaluation, could not be saved' full.txt");
    forgotten += lost, as_without += !lost;
    if (lost)
      tells_the_best();
    else
      program_must("set -e; for f in metrics.jsonl result.json best; do cmp whole/$f full/$f; done");
  }
  assert_true(as_without && forgotten);
}

/* Out of time after a step, evaluated there, and resumed: the same bytes as without. */
static void stops_in_time(void **state) {
  program_must("set -e; " FRESH
               "timed --set checkpoint_every=7 --minutes 1e-6 >text; grep -q 'step 1  epoch .* dev accuracy' text;"
               "grep -q 'stopped after step 1 .*continue with' text; tail -n 1 timed/metrics.jsonl | grep -q '\"dev\"';"
               "choir finetune --resume --out timed >text;"
               "for f in metrics.jsonl result.json best config.json; do cmp whole/$f timed/$f; done");
  program_must(TUNE "--epochs 1e6 --out long --minutes 1e-6");
  assert_non_null(strstr(program_output, "  0:00 left  ")); /* of the minutes, not of the epochs */
  program_refuses(2, "--minutes -1", TUNE "--out no --minutes -1");
  program_refuses(2, "--batch -1", TUNE "--out no --batch -1");
}

/* A run stands for its best checkpoint, which stays however many come behind it. */
static void best(void **state) {
  program_must(
      "set -e; cd run/checkpoints; test $(ls | wc -l) -eq 2; test $(cat ../best) -lt $(ls | tail -n 1); cd ../..;"
      "ask() { echo '{\"context\": \"kalo\", \"continuation\": \" lo\"}' | choir score $1 --requests - 2>/dev/null; };"
      "ask run >a; ask run/checkpoints/$(cat run/best) >b; ask run/checkpoints/$(ls run/checkpoints | tail -n 1) >c;"
      "cmp a b; ! cmp a c");
  program_must(
      "set -e; mkdir lost; cp -r run/. lost; ask() { echo '{\"context\": \"kalo\", \"continuation\": \" lo\"}' |"
      "choir score lost --requests -; }; for best in 99999999 nonsense; do echo $best >lost/best; ask 2>said | cmp - c;"
      "grep -q 'lost/best: names no checkpoint that is there' said; done;"
      "cp run/best lost; truncate -s 1000 lost/checkpoints/$(cat run/best)/model.safetensors; ask 2>said | cmp - c;"
      "grep -q 'passed over' said"); /* nor one that cannot be read */
}

/* A run that was asked to stop says how to go on, and needs the same rows for that. */
static void resume_needs_the_same_rows(void **state) {
  pid_t child = program_start(
      "exec \"$CHOIR\" finetune --init-from pre --task mine.json --data set --threads 1 --epochs 5000 "
      "--set checkpoint_every=3 --set eval_every=2000 --out stopped",
      "stopped.txt");
  program_wait_for_checkpoint(child, "stopped", 2);
  test_signal(child, SIGTERM);
  assert_int_equal(program_wait(child), 3);
  program_must(
      "set -e; grep -q 'choir finetune --resume --out stopped' stopped.txt; grep -q ' dev accuracy ' "
      "stopped.txt;"
      "tail -n 1 stopped/metrics.jsonl | grep -q '\"event\":\"dev\"'; test -s stopped/best; test ! -e "
      "stopped/result.json");
  program_must("mkdir other; cp set/dev.tsv other; sed '$d' set/train.tsv >other/train.tsv");
  program_refuses(1, "other/train.tsv is not that of this checkpoint",
                  "choir finetune --resume --out stopped --data other");
  program_refuses(1, "other/train.tsv is not that of this checkpoint",
                  "sed '2s/good$/BAD/;2s/bad$/good/;2s/BAD/bad/' set/train.tsv >other/train.tsv;"
                  "! cmp -s set/train.tsv other/train.tsv && choir finetune --resume --out stopped --data other");
  program_refuses(1, "set/train.tsv is not that of this checkpoint",
                  "cp -r stopped reworded; sed -i 's/\" lo\"/\" revo\"/' reworded/finetune.json;"
                  "grep -q '\" revo\"' reworded/finetune.json && choir finetune --resume --out reworded");
  program_refuses(2, "--resume keeps the run's", "choir finetune --resume --out stopped --init-from pre");
  program_refuses(2, "--batch: leave them out", "choir finetune --resume --out stopped --batch 4");
  program_refuses(2, "--epochs -3: must be above 0",
                  "choir finetune --init-from pre --task mine.json --data set --out new --epochs -3");
  program_refuses(
      2, "one of --epochs",
      "choir finetune --init-from pre --task mine.json --data set --out new --epochs 2 --set train.steps=9");
  program_refuses(1, "already holds a run", TUNE "--out stopped");
  program_refuses(1, "finetune.json: \"from\" has 0 bytes",
                  "cp -r stopped spoilt; sed -i 's/\"from\": \".*\"/\"from\": \"\"/' spoilt/finetune.json;"
                  "choir finetune --resume --out spoilt");
  program_refuses(
      1, "finetune.json: \"task\" is \"x\"",
      "cp stopped/finetune.json spoilt; python3 -c \"import json; j = json.load(open('spoilt/finetune.json'));"
      "j['task'] = 'x'; json.dump(j, open('spoilt/finetune.json', 'w'))\"; choir finetune --resume --out spoilt");
}

/* Frozen weights keep their bits, the others move; the continued schedule begins at the checkpoint's step. */
static void recipes(void **state) {
  program_must(TUNE
               "--recipe continued --set train.steps=3 --set freeze='*.attn.*,*.ffn.*' --out frozen >text;"
               "grep -q \"\\\"schedule_start\\\": $(sed 's/^0*//' pre/best)\" frozen/config.json");
  program_must(TUNE
               "--set train.steps=2 --set train.eval_sequences=10 --batch-sequences 0 --out part >text 2>said;"
               "grep -q 'batch-sequences is called --batch now' said;"
               "cat part/result.json");
  json_t *root = program_json();
  assert_int_equal(json_at(root, "dev"), 10);
  assert_null(json_object_get(root, "batch"));
  json_decref(root);
  /* epochs of 26 batches, in steps: the nearest number, and one at least */
  program_must("set -e; for epochs in 0.01:1 0.05:1 0.06:2; do " TUNE
               "--epochs ${epochs%%:*} --out epochs-$epochs >text;"
               "grep -q \"\\\"steps\\\": ${epochs#*:},\" epochs-$epochs/config.json; done");
}

/* As train --init-from: experts go on under another router, with the activation that they were trained for. */
static void another_router(void **state) {
  program_must(TUNE "--out by-top-2 --set router.name=gshard_top2 --set train.steps=2 >text");
  program_must(
      "choir finetune --init-from by-top-2 --task mine.json --data set --threads 1 --out chosen "
      "--set router.name=expert_choice --set train.steps=2 >text && grep -q expert_choice chosen/config.json");
  program_refuses(1, "set model.expert_activation to gelu", TUNE "--out no --set expert_activation=swiglu");
}

static void refusals(void **state) {
  program_refuses(2, "--task", "choir finetune --init-from pre --data set --out no");
  program_refuses(1, "s\\xE9t: the name must be UTF-8",
                  "set=\"$(printf 's\\351t')\"; cp -r set \"$set\";"
                  "choir finetune --init-from pre --task mine.json --data \"$set\" --out no");
  program_refuses(2, "constant|continued", TUNE "--recipe constnat --out no");
  program_refuses(1, "absent", "choir finetune --init-from absent --task mine.json --data set --out no");
  program_refuses(1, "train.tsv", "choir finetune --init-from pre --task mine.json --data data --out no");
  program_refuses(1, "has no split",
                  "sed 's/train/learn/g' mine.json >notrain.json;"
                  "choir finetune --init-from pre --task notrain.json --data set --out no");
  program_refuses(1, "no column 'label'",
                  "mkdir -p bad; cp set/dev.tsv bad; printf 'text\\tgold\\na\\tgood\\n' >bad/train.tsv;"
                  "choir finetune --init-from pre --task mine.json --data bad --out no");
  program_refuses(1, "line 3",
                  "printf 'text\\tlabel\\na\\tgood\\nb\\tugly\\nc\\tfair\\n' >bad/train.tsv;"
                  "choir finetune --init-from pre --task mine.json --data bad --out no");
  program_refuses(1, "bad/train.tsv",
                  "printf 'text\\tlabel\\n' >bad/train.tsv;"
                  "choir finetune --init-from pre --task mine.json --data bad --out no");
  program_refuses(1, "freeze", TUNE "--set train.freeze=nothing --out no");
  program_refuses(1, "have no room", TUNE "--set sequence_length=1 --out no");
  program_refuses(1, "train.learning_rate", TUNE "--set train.learning_rate=-1 --out no");
  program_must("test ! -e no");
  program_must(TUNE
               "--set sequence_length=6 --set train.steps=1 --out short; "
               "grep -q '\"cut\":[1-9]' short/metrics.jsonl");
  program_must(
      "mkdir odd; cp set/dev.tsv odd; (cat set/train.tsv; printf 'ka\\377\\tgood\\n') >odd/train.tsv;"
      "choir finetune --init-from pre --task mine.json --data odd --set train.steps=1 --out odd-run;"
      "grep -q '\"malformed\":1' odd-run/metrics.jsonl");
}

TEST_MAIN(set_up, program_directory_remove, learns, resumes, resumes_within_an_epoch, a_disk_that_is_full,
          stops_in_time, best, resume_needs_the_same_rows, another_router, recipes, refusals)
