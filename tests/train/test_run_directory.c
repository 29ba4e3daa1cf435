/* A run's directory is checked before anything in it is changed: links in place of a run's files, other files under
 * their names, lost checkpoints, and calls that fail during the check. */
#include <sys/stat.h>

#include "choir/choir.h"
#include "file/run_files.h"
#include "made_up_task.h"
#include "program.h"
#include "shim.h"

#define TRAIN "choir train --threads 1 "
#define FRESH TRAIN "--config config.json --data data --set eval_every=0 --set checkpoint_every=3 "
#define TUNE "choir finetune --threads 1 --set batch_sequences=2 --set steps=4 "

static const char *const files[] = CH_RUN_FILES;
enum { FILES = sizeof files / sizeof *files };

static void make_runs(void **state) {
  made_up_four_rows("rows.tsv");
  program_must(FRESH "--set steps=7 --out run && " TUNE "--init-from run --task mine.json --data . --out tuned");
}

/* CH_RUN_FILES names exactly the files that training and fine-tuning write. */
static void run_files_are_all_listed(void **state) {
  char known[512] = CH_LOCK "|" CH_RUN_CHECKPOINTS;
  for (int i = 0; i < FILES; i++) {
    strcat(known, "|");
    strcat(known, files[i]);
  }
  program_must(FRESH "--init-from run --set steps=1 --out begun && rm -rf tuned/" CH_RUN_PAGE);
  program_must("! ls run begun tuned | grep . | grep -v : | grep -vxE '%s'", known);
  program_must("ls run begun tuned | grep -xE '%s' | sort -u | wc -l | grep -x %d", known,
               FILES + 1); /* all but no-checkpoint, which the first checkpoint removes */
}

/* A directory that somebody else made: a link in the place of any file leads nowhere, whatever the command. */
static void links_are_not_followed(void **state) {
  static const char *const commands[] = {TRAIN "--resume --out h --data data", FRESH "--out h",
                                         "choir finetune --threads 1 --resume --out h", "choir report h"};
  static const char *const names[] = {CH_RUN_CONFIG,      CH_RUN_DATA,   CH_RUN_FROM, CH_RUN_TUNE,
                                      CH_RUN_METRICS,     CH_RUN_TIMING, CH_RUN_BEST, CH_RUN_RESULT,
                                      CH_RUN_CHECKPOINTS, CH_LOCK,       CH_RUN_PAGE};
  static const char *const begins[] = {"cp -r run h", "mkdir h", "cp -r tuned h", "cp -r run h"};
  for (size_t c = 0; c < sizeof commands / sizeof *commands; c++)
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
      int reads = !strcmp(names[i], CH_RUN_METRICS) || !strcmp(names[i], CH_RUN_TIMING) ||
                  !strcmp(names[i], CH_RUN_PAGE) || !strcmp(names[i], CH_RUN_DATA);
      if (c == 3 ? !reads : !strcmp(names[i], CH_RUN_PAGE)) continue;
      if (c == 2 && !strcmp(names[i], CH_RUN_CONFIG)) continue; /* the program reads it first, and finds no config */
      program_must(
          "rm -rf h victim && %s && printf 'line\nprecious' >victim && cp victim kept && rm -rf h/%s && "
          "ln -s ../victim h/%s && cp -r h before",
          begins[c], names[i], names[i]);
      program_refuses(1, "symbolic link", "%s", commands[c]);
      program_must("cmp victim kept && rm h/%s before/%s && diff -r -x lock h before && rm -r before", names[i],
                   names[i]);
      program_must("rm -rf h; %s && rm -rf h/%s nowhere && ln -s ../nowhere h/%s", begins[c], names[i], names[i]);
      program_refuses(1, "symbolic link", "%s", commands[c]);
      program_must("! test -e nowhere");
    }
}

/* Of a checkpoint, and of a directory of data; a pipe is not waited for. */
static void links_in_checkpoints_and_data(void **state) {
  static const char *const names[] = {"config.json", "model.safetensors", "state.safetensors", "tokenizer.model"};
  for (int i = 0; i < 4; i++) {
    program_must("rm -rf h && cp -r run h && cd h/checkpoints/00000007 && mv %s ../x && ln -s ../x %s", names[i],
                 names[i]);
    program_refuses(1, "symbolic link", TRAIN "--resume --set steps=9 --out h");
    program_refuses(1, "symbolic link", "choir eval h/checkpoints/00000007 --data data");
  }
  static const char *const of_data[] = {"data.json", "tokenizer.model", "text.train.shard", "text.heldout.shard"};
  for (int i = 0; i < 4; i++) {
    program_must("rm -rf d && cp -r data d && mv d/%s x && ln -s ../x d/%s", of_data[i], of_data[i]);
    program_refuses(1, "symbolic link", "choir data info d");
    program_must("rm d/%s && mkfifo d/%s", of_data[i], of_data[i]);
    program_refuses(1, "a pipe, device or socket", "choir data info d");
  }
  program_must("rm -rf h && cp -r run h && rm h/metrics.jsonl && mkfifo h/metrics.jsonl");
  program_refuses(1, "metrics.jsonl: is a pipe", TRAIN "--resume --set steps=9 --out h");
  program_must(
      "rm -rf h && cp -r run h && rm h/checkpoints/00000007/config.json && mkfifo h/checkpoints/00000007/config.json");
  program_refuses(1, "config.json: is a pipe", "choir eval h/checkpoints/00000007 --data data");
}

/* A fresh run refuses every name that it would write. */
static void files_of_the_user_stay(void **state) {
  static const char *const fresh[] = {FRESH "--set steps=2 --out up",
                                      TUNE "--init-from run --task mine.json --data . --out up"};
  static const char *const texts[] = {"my notes\\n", "my notes, without a line end", "42\\n"};
  for (int c = 0; c < 2; c++)
    for (int i = 0; i <= FILES; i++)
      for (int k = 0; k < 3; k++) {
        const char *name = i < FILES ? files[i] : CH_LOCK;
        program_must("rm -rf up before && mkdir up && printf '%s' >up/%s && cp -r up before", texts[k], name);
        const char *said = strcmp(name, CH_RUN_METRICS) ? name : "already holds a run";
        program_refuses(1, said, "%s", fresh[c]);
        program_must("diff -r up before");
      }
  program_must("rm -rf up && mkdir -p up/checkpoints/00000003 && echo mine >up/checkpoints/00000003/x");
  program_refuses(1, "up/checkpoints: holds checkpoints", FRESH "--out up");
  program_must("test $(find up | wc -l) = 4");
  /* What a run that never began left is taken. */
  program_must(
      "rm -rf up && " FRESH
      "--init-from run --set steps=1 --out up && rm -r up/metrics.jsonl up/timing.jsonl up/best up/checkpoints/* "
      "&& " FRESH "--set steps=1 --out up && ! test -e up/from.path");
}

/* A copy by hard links, as by `cp -al` or a backup's, goes on by itself: no byte of the original changes. */
static void hard_links_are_left(void **state) {
  static const char *const begins[] = {"cp -al run h && rm -r h/checkpoints/00000007", "cp -al tuned h"};
  static const char *const commands[] = {TRAIN "--resume --set learning_rate=0.3 --set steps=9 --out h",
                                         "choir finetune --threads 1 --resume --set steps=6 --out h"};
  static const char *const originals[] = {"run", "tuned"};
  for (int i = 0; i < 2; i++) {
    program_must("rm -rf h kept && cp -a %s kept && %s && %s && diff -r kept %s", originals[i], begins[i], commands[i],
                 originals[i]);
    if (!i) assert_non_null(strstr(program_output, "the learning rate of step 7 is "));
    program_must("test $(find h -maxdepth 1 -newer kept/lock -name '*.jsonl' -links 1 | wc -l) = 2");
  }
  /* What is no lock of choir's keeps its name, too. */
  program_must("rm -rf h && cp -al run h && rm h/lock && seq 20 >mine && ln mine h/lock");
  program_refuses(1, "h/lock: is there, and not a lock of choir's", TRAIN "--resume --set steps=9 --out h");
  program_must("test $(stat -c %%h mine) = 2 && seq 20 | cmp - mine");
}

/* Checkpoints that are lost are not begun anew over their log: away, empty, or not to be listed. */
static void lost_checkpoints_are_missed(void **state) {
  static const char *const losses[] = {"rm -r h/checkpoints/*", "rm -r h/checkpoints", "mv h/checkpoints h/kept",
                                       "rm -r h/checkpoints/* h/timing.jsonl"};
  static const char *const runs[] = {"run", "tuned"}, *const verbs[] = {"train", "finetune"};
  for (int r = 0; r < 2; r++)
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
      if (r == 1 && i == 3) continue; /* the log of fine-tuning tells of its steps alone */
      program_must("rm -rf h before && cp -r %s h && %s && cp -r h before", runs[r], losses[i]);
      program_refuses(1, "put the checkpoints back", "choir %s --threads 1 --resume --out h", verbs[r]);
      program_must("diff -r -x lock h before");
    }
  /* Where none was ever made, the run begins anew. */
  program_must(
      FRESH
      "--set steps=2 --out early && rm -r early/checkpoints/* && sed -i /checkpoint/d early/timing.jsonl && " TRAIN
      "--resume --out early && grep -c '\"step\",' early/metrics.jsonl | grep -x 2");
  /* Of equal keys the last one counts, of whatever type. */
  program_must(
      "rm -rf h && cp -r early h && rm -rf h/checkpoints/* h/timing.jsonl && "
      "printf '{\"event\":\"x\",\"event\":1}\\n' >h/metrics.jsonl && " TRAIN "--resume --out h");
  /* Nor is a log made where the old one is away. */
  program_must("rm -rf h before && cp -r run h && rm h/metrics.jsonl && cp -r h before");
  program_refuses(1, "put the file back", TRAIN "--resume --set steps=9 --out h");
  program_must("diff -r -x lock h before");
}

/* A run that ended before it had a log may lack some of its settings: it is no run to resume, and is begun anew. */
static void settings_alone_are_no_run(void **state) {
  static const char *const fresh[] = {FRESH "--init-from run --set steps=1 --out new",
                                      TUNE "--init-from run --task mine.json --data . --out new"};
  static const char *const resume[] = {TRAIN "--resume --data data --out new",
                                       "choir finetune --threads 1 --resume --out new"};
  for (int c = 0; c < 2; c++) {
    program_must("rm -rf new whole && %s && cp -r new whole", fresh[c]);
    for (int i = 0; i < CH_RUN_EARLY; i++) {
      program_must("rm -r new/checkpoints/* && cd new && rm -f lock %s %s %s %s %s", i < 1 ? CH_RUN_DATA : "",
                   i < 2 ? CH_RUN_FROM : "", i < 3 ? CH_RUN_TUNE : "", CH_RUN_METRICS " " CH_RUN_TIMING " " CH_RUN_BEST,
                   CH_RUN_RESULT);
      program_refuses(1, "new/metrics.jsonl: no run has begun here; give the command without --resume", "%s",
                      resume[c]);
      program_must("%s && diff -r -x lock -x timing.jsonl -x metrics.jsonl whole new", fresh[c]);
    }
  }
}

/* One call that fails, in every place and of every class by which choir looks: no file gets shorter, nothing is begun
 * anew, and the next try goes on. */
static void failing_checks_keep_files(void **state) {
  static const char *const classes[] = {"pread", "readdir", "access", "stat"};
  static const int numbers[] = {EIO, ESTALE, EINTR};
  if (!*CHOIR_SHIM) skip();
  int refused = 0;
  program_must("rm -rf straight && cp -r run straight && " TRAIN "--resume --set steps=8 --out straight");
  for (int c = 0; c < 4; c++)
    for (int call = 1, status = 1; call < 400; call += call < 24 ? 1 : 9) {
      int number = numbers[call % 3];
      program_must("rm -rf h && cp -r run h");
      status = program_run(
          "export FAULT_COUNTS=\"$PWD/counts\"; rm -f counts; faulty %s:%d:%d train --threads 1 --resume "
          "--set steps=8 --out h",
          classes[c], number, call);
      size_t size;
      char *bytes = program_read("counts", &size);
      shim_counts counts;
      assert_true(bytes && size == sizeof counts);
      memcpy(&counts, bytes, sizeof counts);
      free(bytes);
      if (!counts.failed) break;
      if (status > 1 || strstr(program_output, "step 1/"))
        fail_msg("%s:%d:%d: %s", classes[c], number, call, program_output);
      refused += status == 1;
      struct stat before, after;
      assert_int_equal(stat("run/metrics.jsonl", &before) | stat("h/metrics.jsonl", &after), 0);
      if (after.st_size < before.st_size)
        fail_msg("%s:%d:%d: the log was cut: %s", classes[c], number, call, program_output);
      program_must(TRAIN "--resume --set steps=8 --out h");
      assert_true(program_same_runs("straight", "h", 8));
    }
  assert_true(refused > 10);
}

TEST_MAIN(program_setup, program_directory_remove, make_runs, run_files_are_all_listed, links_are_not_followed,
          links_in_checkpoints_and_data, files_of_the_user_stay, lost_checkpoints_are_missed, hard_links_are_left,
          settings_alone_are_no_run, failing_checks_keep_files)
