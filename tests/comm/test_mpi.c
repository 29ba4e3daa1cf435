/* The program under mpirun: the files of one process, one voice, and an end for all when one dies. */
#include "mpi.h"
#include "npy/npy.h"

static int times(const char *word) {
  int count = 0;
  for (const char *at = program_output; (at = strstr(at, word)); at++) count++;
  return count;
}

/* int32 [8,16] */
static void save_tokens(const char *path) {
  int32_t token[8 * 16];
  for (int i = 0; i < 8 * 16; i++) token[i] = i * 37 % 320;
  test_ok(ch_npy_write(path, &(ch_npy){.type = CH_NPY_INT32, .dims = 2, .shape = {8, 16}, .data = token}));
}

static void same_files_and_output_of_one_rank(void **state) {
  needs_mpi();
  program_must(FRESH "--set steps=6 --set eval_every=3 --out one");
  program_must(MPIRUN "-n 4 " FRESH "--set steps=6 --set eval_every=3 --out four");
  assert_int_equal(times("done: 6 steps"), 1);
  assert_int_equal(times("memory "), 1);
  assert_int_equal(times("4 ranks: in each step rank 0 sent"), 1);
  assert_true(times("%, straggler: rank ") > 0);
  assert_true(program_same_runs("one", "four", 6));
  program_must("test $(grep -c '\"ranks\":4,\"sent_bytes\":[1-9]' four/timing.jsonl) = 6");
  program_must("grep -q '\"event\":\"process\".*\"dense\":\"whole\"' four/timing.jsonl");
}

#ifndef CHOIR_ANY_MPI
#define CHOIR_ANY_MPI ""
#endif

/* The program of a wheel, which knows no MPI before it starts. */
static void same_files_by_an_mpi_that_is_found(void **state) {
  needs_mpi();
  if (!*CHOIR_ANY_MPI) test_skip("a program that finds an MPI: not built with sanitizers");
  program_must(MPIRUN "-n 2 env CHOIR=%s sh -c '" FRESH "--set steps=6 --set eval_every=3 --out found'", CHOIR_ANY_MPI);
  assert_true(program_same_runs("one", "found", 6));
}

/* Told so, all speak: the first as ever, the others on the other stream. */
static void output_of_all_ranks(void **state) {
  needs_mpi();
  program_must(MPIRUN "-n 3 " FRESH
                      "--replicas 1 --set grad_chunks=6 --set batch_sequences=6 --set steps=1 --verbose-ranks "
                      "--out voices >first.txt 2>others.txt");
  program_must("cat first.txt");
  assert_int_equal(times("done: 1 steps"), 1);
  assert_int_equal(times("rank 1:"), 0);
  program_must("cat others.txt");
  for (int rank = 1; rank < 3; rank++) {
    char sent[64], done[64];
    snprintf(sent, sizeof sent, "rank %d: 3 ranks: in each step rank %d sent", rank, rank);
    snprintf(done, sizeof done, "rank %d: done: 1 steps", rank);
    assert_int_equal(times(sent), 1);
    assert_int_equal(times(done), 1);
  }
  assert_int_equal(times("rank 0:"), 0);
}

/* Dense matrices on one process each, which send what products read of them: the same files. */
static void same_files_sharded(void **state) {
  needs_mpi();
  for (int i = 0; i < 2; i++) {
    const char *set =
        i ? "--emulate-bf16 --set compute=bf16 --set steps=6 --set eval_every=3" : "--set steps=6 --set eval_every=3";
    program_must(FRESH "%s --out apart%d", set, i);
    program_must(MPIRUN "-n 4 " FRESH "%s --shard-dense --out sharded%d", set, i);
    char apart[16], sharded[16];
    snprintf(apart, sizeof apart, "apart%d", i);
    snprintf(sharded, sizeof sharded, "sharded%d", i);
    assert_true(program_same_runs(apart, sharded, 6));
    program_must("grep -q '\"event\":\"process\".*\"dense\":\"sharded\"' %s/timing.jsonl", sharded);
  }
}

/* Replicas of experts: no bytes of one process, but the same bytes again. */
static void replicas_again(void **state) {
  needs_mpi();
  for (int i = 1; i <= 2; i++)
    program_must(MPIRUN "-n 4 " FRESH "--set steps=6 --set eval_every=3 --replicas 2 --out again%d", i);
  assert_int_equal(times("4 ranks, 2 replicas of the experts: in each step rank 0 sent"), 1);
  assert_true(program_same_runs("again1", "again2", 6));
  program_must("grep -q '\"ranks\":4,\"replicas\":2' again1/timing.jsonl");
  program_must(MPIRUN "-n 4 \"$CHOIR\" eval again1 --data data --replicas 4 --threads 1");
  assert_int_equal(times("held-out loss: "), 1);
  assert_int_not_equal(program_run(MPIRUN "-n 4 " FRESH "--replicas 3 --out three"), 0);
  assert_int_equal(times("3 replicas of the experts on 4 processes"), 1);
  assert_int_not_equal(program_run(FRESH "--replicas 2 --out none"), 0);
}

static void resumes_with_another_number_of_ranks(void **state) {
  needs_mpi();
  program_must(MPIRUN "-n 4 " FRESH "--set steps=3 --out moved");
  program_must(MPIRUN "-n 2 " TRAIN "--resume --set steps=6 --out moved");
  program_must(TRAIN "--resume --set steps=9 --out moved");
  program_must(FRESH "--set steps=3 --out straight && " TRAIN "--resume --set steps=6 --out straight && " TRAIN
                     "--resume --set steps=9 --out straight");
  assert_true(program_same_runs("straight", "moved", 9));
}

static void refuses_once(void **state) {
  needs_mpi();
  assert_int_not_equal(program_run(MPIRUN "-n 3 " FRESH "--out three"), 0);
  assert_int_equal(times("train.grad_chunks is 8, which 3 processes cannot share evenly"), 1);
  assert_int_not_equal(
      program_run(MPIRUN TWO(FRESH "--set steps=3 --out odd", "exec " FRESH "--set steps=4 --out odd")), 0);
  assert_int_equal(times("rank 1 of 2 has another config than rank 0"), 1);
  assert_int_not_equal(program_run(MPIRUN TWO(FRESH "--out odd", "exec " FRESH "--backend reference --out odd")), 0);
  assert_int_equal(times("rank 1 of 2 has another backend than rank 0"), 1);
#define EVAL "\"$CHOIR\" eval even --data data --threads 1 "
  program_must(FRESH "--set steps=1 --out even");
  assert_int_not_equal(program_run(MPIRUN TWO(EVAL, "exec " EVAL "--routing threshold")), 0);
  assert_int_equal(times("rank 1 of 2 has another --routing than rank 0"), 1);
}

/* The first process tells what is wrong for one process alone, before they have anything in common; nobody waits. */
static void an_error_of_one_rank_ends_all(void **state) {
  needs_mpi();
  static const struct {
    int status;
    const char *words, *says;
  } odd[] = {{1, "train --data data --out odd --config nowhere.json",
              "choir train: rank 1 of 2: there is no built-in config 'nowhere.json', and no file nowhere.json: "},
             {2, "train --data data --out odd --config config.json --bogus", "rank 1 of 2: unknown option --bogus"},
             {1, "train --data data --out odd --config config.json --set learning_rate=x",
              "rank 1 of 2: train.learning_rate is 'x'"},
             {1, "train --data data --out odd --config config.json --replicas 3", "rank 1 of 2: 3 replicas"},
             {1, "eval odd --data data --shards 2", "rank 1 of 2 has another verb than rank 0"},
             {1, "info config.json", "rank 1 of 2 has another verb than rank 0"}};
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    program_refuses(odd[i].status, odd[i].says, MPIRUN "--timeout 60 " TWO(FRESH "--out odd", "exec \"$CHOIR\" %s"),
                    odd[i].words);
    assert_int_equal(times("rank 1 of 2"), 1);
  }
  program_must("! test -e odd");
}

/* One program in another build, which might compute or send something else. */
static void another_build(void **state) {
  needs_mpi();
  if (program_run("objcopy --dump-section .note.gnu.build-id=id \"$CHOIR\" other && test -s id"))
    test_skip("a program of another build: no objcopy, or no id of builds");
  program_must(
      "printf %%020d 7 | dd of=id bs=1 seek=16 conv=notrunc 2>/dev/null && "
      "objcopy --update-section .note.gnu.build-id=id \"$CHOIR\" other");
  program_refuses(1, "choir train: rank 1 of 2 (",
                  MPIRUN "--timeout 60 " TWO(FRESH "--out odd", "CHOIR=./other; exec " FRESH "--out odd"));
  assert_int_equal(times("has another build of choir than rank 0"), 1);
}

/* Verbs that only look at a model: the bytes of one process, from the first process alone. */
static void same_numbers(void **state) {
  needs_mpi();
  static const char *const verbs[] = {"eval --data data --json",
                                      "eval --text page.txt --batch 3 --json",
                                      "eval --data data --shards 4",
                                      "stats --text page.txt --json",
                                      "stats --text page.txt --routing threshold",
                                      "forward --json --logits L.npy --gradients G.safetensors"};
  program_must(FRESH "--set steps=3 --out looked && head -c 2000 corpus.txt >page.txt");
  save_tokens("tokens.npy");
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
    const char *tokens = strstr(verbs[i], "forward") ? "tokens.npy" : "", *rest = strchr(verbs[i], ' ');
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
      char start[400] = "";
      if (ranks > 1) snprintf(start, sizeof start, MPIRUN "-n %d ", ranks);
      program_must("%s \"$CHOIR\" %.*s looked %s --threads 1 %s >out.%d 2>err.%d", start, (int)(rest - verbs[i]),
                   verbs[i], tokens, rest, ranks, ranks);
      program_must("test -s out.%d && ! grep -v ': note: ' err.%d", ranks, ranks);
      if (ranks > 1 && !program_same("out.1", ranks == 2 ? "out.2" : "out.4"))
        fail_msg("%s: %d ranks", verbs[i], ranks);
      if (!*tokens) continue;
      if (ranks == 1) program_must("mv L.npy L1.npy && mv G.safetensors G1.safetensors");
      if (ranks > 1) program_must("cmp L.npy L1.npy && cmp G.safetensors G1.safetensors");
    }
  }
}

static void refuses_what_is_for_one(void **state) {
  needs_mpi();
  static const char *const verbs[] = {"generate looked --prompt ka", "info config.json", "data info data",
                                      "inspect looked --text page.txt --out page.html", "study run pools"};
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
    assert_int_equal(program_run(MPIRUN "-n 3 \"$CHOIR\" %s", verbs[i]), 1);
    assert_int_equal(times("runs in one process, but 3 were started together"), 1);
  }
  program_refuses(1, "'-' is a pipe, which only one of 3 processes can read",
                  "echo ka | " MPIRUN "-n 3 \"$CHOIR\" eval looked --text -");
}

/* Help and version of verbs for several, for one, of none, and of Python's. */
static void help_is_said_once(void **state) {
  needs_mpi();
  static const char *const all[] = {"--version",    "--help",      "help routers", "help train",
                                    "train --help", "info --help", "data --help",  "help study"};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    program_must("choir %s >said", all[i]);
    program_must("{ " MPIRUN "-n 2 timeout 60 \"$CHOIR\" %s; } >said.2 && cmp said said.2", all[i]);
  }
  program_must(MPIRUN "-n 2 timeout 60 \"$CHOIR\" study --help");
  assert_int_equal(times("Usage: choir study"), 1);
  program_refuses(1, "has another verb than rank 0",
                  MPIRUN TWO("timeout 60 \"$CHOIR\" train --help", "exec timeout 60 \"$CHOIR\" train --out nothing"));
}

/* kill -9 of one: the launcher ends the rest, and nothing but the steps since the last checkpoint is lost. */
static void one_dies_all_end(void **state) {
  needs_mpi();
  program_must(FRESH "--set steps=3 --out whole");
  pid_t job = program_start(MPIRUN "-n 2 " FRESH "--set steps=12000 --out killed", "killed.txt");
  program_wait_for_checkpoint(job, "killed", 0);
  program_must("kill -9 $(cat killed/lock)"); /* the first rank has it */
  assert_int_not_equal(program_wait(job), 0);
  program_must("! kill -0 $(cat killed/lock) 2>/dev/null");
  int step = program_newest("killed");
  assert_true(step >= 3);
  char steps[32];
  snprintf(steps, sizeof steps, "%d", step + 3);
  program_must(MPIRUN "-n 4 " TRAIN "--resume --set steps=%s --out killed", steps);
  program_must(TRAIN "--resume --set steps=%s --out whole", steps);
  program_must("cmp whole/checkpoints/%08d/model.safetensors killed/checkpoints/%08d/model.safetensors", step + 3,
               step + 3);
}

/* A process that is stopped says nothing: the others say where it was heard last, and end, and it with them. */
static void one_is_silent(void **state) {
  needs_mpi();
  for (int rank = 0; rank < 3; rank += 2) {
    program_must("rm -rf stopped");
    pid_t job = program_start(MPIRUN "-n 4 " FRESH "--set steps=100000 --rank-timeout 6 --out stopped", "stopped.txt");
    program_wait_for_checkpoint(job, "stopped", 0);
    pid_t process = mpi_process(rank);
    if (!process) program_must("cat stopped.txt; false"); /* it ended too early: why? */
    assert_int_equal(test_signal(process, SIGSTOP), 0);
    int status = program_wait(job);
    program_must("cat stopped.txt");
    if (status != 4) fail_msg("status %d: %s", status, program_output);
    char want[64];
    snprintf(want, sizeof want, " for rank %d (", rank);
    const char *said = strstr(program_output, " has waited for 6 s in "), *whom = said ? strstr(said, want) : NULL;
    if (!whom || !strstr(whom, "last heard in ")) fail_msg("%s", program_output);
    for (int r = 0; r < 4; r++) assert_int_equal(mpi_process(r), 0);
  }
}

/* A process that stops when all is saved, before it has left: the others end, too, and say why. */
static void one_does_not_leave(void **state) {
  needs_mpi();
  if (!*CHOIR_SHORT_MESSAGE) test_skip("a rank that does not leave: preloaded, which sanitizers do not allow");
#define ENDS FRESH "--set steps=1 --rank-timeout 4 --out left"
  int status = program_run(
      MPIRUN_SET "timeout -s KILL 60 " MPIRUN_WORDS TWO(ENDS, "exec env STOPS_AT_END=1 LD_PRELOAD=\"%s\" " ENDS),
      CHOIR_SHORT_MESSAGE);
  if (status != 4 || !times(" has waited for 4 s in ") || !times("for a rank that has not left"))
    fail_msg("status %d: %s", status, program_output);
  assert_int_equal(times("done: 1 steps"), 1);
}

/* MPI lets it pass. How long it then takes mpirun to end is not looked at: tests/faults/faults_ranks.c. */
static void a_message_is_short(void **state) {
  needs_mpi();
  if (!*CHOIR_SHORT_MESSAGE) test_skip("a message that is too short: preloaded, which sanitizers do not allow");
#define LONG FRESH "--set steps=1000 --out lacks"
  static const int numbers[] = {1, 50, 300};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    program_must("rm -rf lacks");
    int status = program_run(
        MPIRUN_SET "timeout -s KILL 60 " MPIRUN_WORDS TWO(LONG, "exec env SHORT_MESSAGE=%d LD_PRELOAD=\"%s\" " LONG),
        numbers[i], CHOIR_SHORT_MESSAGE);
    if (!status || times("bytes came from rank 1 in exchange ") != 1)
      fail_msg("message %d, status %d: %s", numbers[i], status, program_output);
  }
}

/* A stop requested while the processes connect to each other: the second one starts late. */
static void interrupt_before_the_first_step(void **state) {
  needs_mpi();
  pid_t job = program_start(MPIRUN "--timeout 90 " TWO(FRESH "--set steps=100000 --out early",
                                                       "sleep 3; exec " FRESH "--set steps=100000 --out early"),
                            "early.txt");
  pid_t first = 0;
  for (int tries = 0; !first && tries < 1000; tries++) {
    program_nap(0.01);
    first = mpi_process(0);
  }
  program_nap(1);
  assert_int_equal(test_signal(first, SIGUSR1), 0);
  int status = program_wait(job);
  program_must("cat early.txt");
  if (status != 3) fail_msg("status %d: %s", status, program_output);
  assert_int_equal(program_newest("early"), 1);
}

TEST_MAIN(program_setup, program_directory_remove, same_files_and_output_of_one_rank,
          same_files_by_an_mpi_that_is_found, output_of_all_ranks, same_files_sharded, replicas_again,
          resumes_with_another_number_of_ranks, refuses_once, an_error_of_one_rank_ends_all, another_build,
          same_numbers, refuses_what_is_for_one, help_is_said_once, one_dies_all_end, one_is_silent, one_does_not_leave,
          a_message_is_short, interrupt_before_the_first_step)
