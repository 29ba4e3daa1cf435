/* One rank of several is killed or stopped, at a random instant in a step, while a checkpoint is saved or one is read:
 * the others end with it, and any number of ranks goes on to the bytes of a run that nobody disturbed.
 * faults/faults_ranks.c does the same to processes under mpirun. test_ranks_killed [KILLS STOPS]. */
#include "base/machine.h"
#include "forked_runs.h"

enum { STEPS = 6, LAYOUTS = 2 };
static int kills = sizeof CHOIR_SHIM > 1 ? 200 : 20, stops = 16; /* fewer with a sanitizer, which takes its time */
static const int sizes[LAYOUTS] = {2, 4}, others[] = {4, 1, 2};
static const char *const whole[] = {"begun", "resumed"}; /* runs of one process, whose bytes others must equal */

static double drawn(uint32_t sub, int number) {
  return ch_rng_uniform(ch_rng_make(20261123, CH_STREAM_TEST, sub), (uint64_t)number);
}

/* A run that saves after every step, in several files; the second kind goes on with one that has half of the
 * steps. */
static job prepare(int resumes, const char *out) {
  job j = job_of("expert_choice", out, STEPS);
  j.config.train.checkpoint_every = 1;
  j.config.train.keep_checkpoints = 2;
  j.config.train.file_bytes = 6000;
  j.config.train.eval_every = 0;
  program_must("rm -rf %s", out);
  if (!resumes) return j;
  program_must("cp -r half %s", out);
  j.resume = 1;
  return j;
}

/* From begin to end, when nobody is killed. */
static double duration(int resumes, int ranks) {
  job j = prepare(resumes, "timed");
  double begin = ch_machine_seconds();
  go(j, ranks);
  return ch_machine_seconds() - begin;
}

/* Goes on with what is there, or begins. */
static void repair(job j, int ranks) {
  j.kill_rank = -1;
  j.patience = 0;
  j.resume = !program_run("test -e %s/metrics.jsonl || ls %s/checkpoints 2>/dev/null | grep -q .", j.out, j.out);
  if (!j.resume) program_must("rm -rf %s", j.out);
  go(j, ranks);
}

/* The run's files equal those of an undisturbed run of one process. */
static void wants_the_same(const char *want, const char *what) {
  if (program_run("diff -r %s/checkpoints many/checkpoints && cmp %s/metrics.jsonl many/metrics.jsonl && "
                  "test \"$(ls -A %s)\" = \"$(ls -A many)\"",
                  want, want, want))
    fail_msg("%s: other bytes, or files: %s", what, program_output);
}

static double length[2][LAYOUTS];

static int setup(void **state) {
  if (program_setup(state)) return -1;
  job half = prepare(0, "half");
  half.config.train.steps = STEPS / 2;
  go(half, 1);
  program_must("sed -i 's/\"steps\": %d/\"steps\": %d/' half/config.json", STEPS / 2, STEPS);
  for (int i = 0; i < 2; i++) go(prepare(i, whole[i]), 1);
  for (int i = 0; i < 2 * LAYOUTS; i++) length[i / LAYOUTS][i % LAYOUTS] = duration(i / LAYOUTS, sizes[i % LAYOUTS]);
  return 0;
}

static void killed_at_random_instants(void **state) {
  int done = 0, tries = 0, when[3] = {0}; /* before it has saved itself, then, after the last step */
  char what[96];
  for (; done < kills; tries++) {
    int resumes = tries % 2, k = tries / 2 % LAYOUTS, ranks = sizes[k], next = others[tries % 3];
    job j = prepare(resumes, "many");
    j.kill_rank = (int)(ranks * drawn(1, tries));
    j.kill_after = length[resumes][k] * drawn(2, tries);
    int struck = forked_run(ranks, 0, train, &j), step = program_newest("many");
    if (!struck && step != STEPS) fail_msg("rank %d of %d: nobody was killed, at step %d", j.kill_rank, ranks, step);
    repair(j, next);
    snprintf(what, sizeof what, "rank %d of %d killed after step %d, then %d", j.kill_rank, ranks, step, next);
    wants_the_same(whole[resumes], what);
    done += struck;
    when[step <= (resumes ? STEPS / 2 : 0) ? 0 : step < STEPS ? 1 : 2] += struck;
  }
  print_message("%d kills of %d jobs, %d before a checkpoint of their own, %d after the last\n", done, tries, when[0],
                when[2]);
  assert_true(!kills || when[1] > 0); /* how many depends on what else the machine does */
}

/* By turns it goes on after a while, and so do all, or it does not, and the others say so and end. One that stops
 * behind its last exchange is in nobody's way. */
static void stopped_at_random_instants(void **state) {
  silence *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int done = 0, tries = 0, told = 0;
  char what[96], whom[32];
  assert_true(s != MAP_FAILED);
  for (; done < stops; tries++) {
    int resumes = tries % 2, k = tries / 2 % LAYOUTS, stays = tries / 4 % 2, ranks = sizes[k], next = others[tries % 3];
    job j = prepare(resumes, "many");
    memset(s, 0, sizeof *s);
    j.kill_rank = (int)(ranks * drawn(3, tries));
    j.kill_after = length[resumes][k] * drawn(4, tries);
    j.wake_after = stays ? 40 : drawn(5, tries);
    j.patience = stays ? 5 : 0; /* more than a rank of a busy machine is late */
    j.silence = s;
    int failed = forked_run(ranks, 0, train, &j), step = program_newest("many");
    snprintf(what, sizeof what, "rank %d of %d stopped (%d), newest checkpoint %d", j.kill_rank, ranks, stays, step);
    snprintf(whom, sizeof whom, "rank %d (", j.kill_rank); /* the waiting rank is "rank N of" */
    if (failed != (s->told > 0) || (s->told && !strstr(s->text, whom))) fail_msg("%s: %s", what, s->text);
    if (!failed && step != STEPS) fail_msg("%s: all ended well", what);
    done += s->stopped, told += s->told > 0;
    if (failed) repair(j, next);
    wants_the_same(whole[resumes], what);
  }
  print_message("%d stops in %d jobs: in %d the others said so and ended, the rest went on\n", done, tries, told);
  munmap(s, sizeof *s);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(killed_at_random_instants),
                                     cmocka_unit_test(stopped_at_random_instants)};
  if (argc > 1) kills = atoi(argv[1]);
  if (argc > 2) stops = atoi(argv[2]);
  return cmocka_run_group_tests(tests, setup, program_directory_remove);
}
