/* A disk without room: said once, the run goes on in memory, saves when there is room again, or stops in order. */
#include "program.h"
#include "shim.h"

enum { STEPS = 60 };
#define TRAIN "train --threads 1 --config config.json --data data "

static int count_lines(const char *path, const char *part) {
  size_t size = 0;
  char *text = program_read(path, &size);
  int count = 0;
  for (const char *at = text; at && (at = strstr(at, part)); at++) count++;
  free(text);
  return count;
}

static void whole_run(void) {
  if (access("whole", F_OK)) program_must("choir " TRAIN "--out whole");
}

/* Calls that fail for a while, beginning anywhere behind the start: log lines and checkpoints. */
static void calls_that_fail_for_a_while(void **state) {
  if (!*CHOIR_SHIM) skip();
  whole_run();
  for (int first = 40; first < 400; first += 71) {
    program_must("rm -rf run; faulty write:28:%d:30 " TRAIN "--out run >run.txt 2>&1", first);
    assert_true(program_same_runs("whole", "run", STEPS));
    assert_int_equal(count_lines("run.txt", "disk full"), 1);
    assert_int_equal(count_lines("run.txt", "there is room on the disk again"), 1);
    program_must("! find run | grep choir-tmp-");
  }
}

/* A quota and fsync are no different; an error that no waiting mends ends the run, and what was saved stands. */
static void other_errors(void **state) {
  if (!*CHOIR_SHIM) skip();
  whole_run();
  program_must("rm -rf run; faulty write:122:100:5 " TRAIN "--out run");
  assert_non_null(strstr(program_output, "quota"));
  assert_true(program_same_runs("whole", "run", STEPS));
  program_must("rm -rf run; faulty fsync:28:30:2 " TRAIN "--out run");
  assert_true(program_same_runs("whole", "run", STEPS));
  program_refuses(1, "Input/output error", "rm -rf run; faulty write:5:100:1000000 " TRAIN "--out run 2>&1");
  program_must("choir train --resume --out run");
  assert_true(program_same_runs("whole", "run", STEPS));
}

/* The name of the best checkpoint, too: the last calls of each class find no room for a while. */
static void names_the_best(void **state) {
  static const struct {
    const char *name;
    shim_class class;
  } kinds[] = {{"mkdir", SHIM_MKDIR}, {"rename", SHIM_RENAME}, {"fsync", SHIM_FSYNC}};
  if (!*CHOIR_SHIM) skip();
  program_must("export FAULT_COUNTS=\"$PWD/counts\"; rm -rf run; faulty rename:28:1000000 " TRAIN "--out run");
  size_t size;
  char *bytes = program_read("counts", &size);
  shim_counts counts;
  assert_true(bytes && size == sizeof counts);
  memcpy(&counts, bytes, sizeof counts);
  free(bytes);
  program_must("mv run/best named");
  for (int i = 0; i < 3; i++)
    for (int back = 0; back < 3; back++) {
      program_must("rm -rf run; faulty %s:28:%d:2 " TRAIN "--out run 2>&1", kinds[i].name,
                   (int)counts.calls[kinds[i].class] - back);
      program_must("cmp named run/best && ! find run | grep choir-tmp-");
    }
}

#define CHECK(condition) \
  if (!(condition)) _exit(fprintf(stderr, "%s:%d: %s\n%s\n", __FILE__, __LINE__, #condition, program_output) > 0)

/* Until the run says so; 0: it has ended instead. */
static int wait_for(pid_t child, const char *text) {
  siginfo_t ended = {.si_pid = 0};
  while (program_run("grep -q '%s' small.txt", text)) {
    if (waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT) || ended.si_pid)
      return !program_run("grep -q '%s' small.txt", text);
    usleep(10000);
  }
  return 1;
}

/* In a child that sees a small disk at "small": fills it when the run has saved its first checkpoint. On a busy machine
 * the run may have ended by then: once more. */
static pid_t start_and_fill(const char *options) {
  char command[512];
  snprintf(command, sizeof command, "exec \"$CHOIR\" " TRAIN "--out small/run %s", options);
  for (;;) {
    pid_t child = program_start(command, "small.txt");
    while (access("small/run/checkpoints/00000007", F_OK)) usleep(200);
    test_signal(child, SIGSTOP);
    program_run("dd if=/dev/zero of=small/fill bs=1k 2>/dev/null");
    test_signal(child, SIGCONT);
    if (wait_for(child, "disk full")) return child;
    program_wait(child);
    program_run("rm -rf small/fill small/run small.txt");
  }
}

static void in_a_small_disk(void (*body)(void)) {
  whole_run();
  program_must("mkdir -p small");
  pid_t child = fork();
  if (!child) {
    if (program_mount("small", "2m")) _exit(77);
    body();
    _exit(0);
  }
  int status = program_wait(child);
  if (status == 77) skip();
  assert_int_equal(status, 0);
}

/* Slowed down by evaluations, so that there is time to fill the disk. */
#define LONGER "--set steps=900 --set eval_every=1 --set eval_sequences=2 "

static void fill_and_free(void) {
  pid_t child = start_and_fill(LONGER);
  usleep(500000);
  CHECK(!program_run("rm small/fill"));
  CHECK(wait_for(child, "room on the disk again"));
  test_signal(child, SIGINT);
  CHECK(program_wait(child) == 3);
  CHECK(
      !program_run("choir train --resume --set steps=60 --set eval_every=20 --set eval_sequences=8 --out small/run; "
                   "choir eval small/run --data data"));
}
static void space_becomes_free(void **state) { in_a_small_disk(fill_and_free); }

static void fill_and_wait(void) {
  pid_t child = start_and_fill(LONGER "--disk-minutes 0.01");
  CHECK(program_wait(child) == 1);
  CHECK(!program_run("grep 'which could not be saved: .*disk full.* make room and resume' small.txt"));
  CHECK(!program_run("choir eval small/run --data data")); /* what was saved can be used, and resumed from */
  CHECK(program_run("choir train --resume --disk-minutes 0.01 --out small/run") == 1);
  CHECK(strstr(program_output, "disk full") != NULL);
  CHECK(!program_run("rm small/fill; choir train --resume --set steps=900 --minutes 0.001 --out small/run"));
}
static void the_limit(void **state) { in_a_small_disk(fill_and_wait); }

/* All steps end while the disk is full: the run waits for room, and then saves its last checkpoint. */
static void fill_to_the_end(void) {
  pid_t child = start_and_fill("");
  CHECK(wait_for(child, "waiting for room"));
  CHECK(!program_run("! test -d small/run/checkpoints/00000060 && rm small/fill"));
  CHECK(program_wait(child) == 0);
  CHECK(program_same_runs("whole", "small/run", STEPS));
  program_run("rm -rf small/run small.txt");
  child = start_and_fill(""); /* or the user gives up */
  CHECK(wait_for(child, "waiting for room"));
  test_signal(child, SIGINT);
  CHECK(program_wait(child) == 1);
  CHECK(!program_run("grep -q 'stopped after step 60 of 60, which could not be saved' small.txt"));
  CHECK(!program_run("rm small/fill; choir train --resume --out small/run"));
  CHECK(program_same_runs("whole", "small/run", STEPS));
}
static void at_the_end(void **state) { in_a_small_disk(fill_to_the_end); }

/* A disk without room for any checkpoint: the run ends without one, and begins anew where there is room. */
static void disk_full_from_the_start(void) {
  CHECK(!program_run("dd if=/dev/zero of=small/fill bs=1k count=1900 2>/dev/null"));
  CHECK(program_run("choir " TRAIN "--out small/run --set eval_every=0 --disk-minutes 0.001") == 1);
  CHECK(strstr(program_output, "disk full") != NULL);
  CHECK(!program_run(
      "! ls small/run/checkpoints | grep . && test -f small/run/no-checkpoint && test -s small/run/metrics.jsonl"));
  CHECK(!program_run("rm small/fill; choir train --resume --out small/run"));
  CHECK(!program_run("! test -e small/run/no-checkpoint && test -d small/run/checkpoints/00000060"));
}
static void disk_full_at_the_first_write(void **state) { in_a_small_disk(disk_full_from_the_start); }

TEST_MAIN(program_setup, program_directory_remove, calls_that_fail_for_a_while, names_the_best, other_errors,
          space_becomes_free, the_limit, at_the_end, disk_full_at_the_first_write)
