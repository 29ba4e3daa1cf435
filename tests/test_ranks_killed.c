/* One rank of several is killed, at a random instant in a step, while a checkpoint is saved or one is read: the others
 * end with it, and any number of ranks goes on to the bytes of a run that nobody killed. faults/faults_ranks.c does the
 * same to processes under mpirun. */
#include "base/machine.h"
#include "forked_runs.h"

enum { STEPS = 6, LAYOUTS = 2 };
static const int sizes[LAYOUTS] = {2, 4}, others[] = {4, 1, 2};
static const char *const whole[] = {"begun", "resumed"}; /* of one process: what each kind of run must come to */

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
  j.resume = !program_run("test -e %s/metrics.jsonl || ls %s/checkpoints 2>/dev/null | grep -q .", j.out, j.out);
  if (!j.resume) program_must("rm -rf %s", j.out);
  go(j, ranks);
}

static void killed_at_random_instants(void **state) {
  const int kills = *CHOIR_SHIM ? 200 : 20; /* fewer with a sanitizer, which takes its time */
  double length[2][LAYOUTS];
  int done = 0, tries = 0, when[3] = {0}; /* before it has saved itself, then, after the last step */
  job half = prepare(0, "half");
  half.config.train.steps = STEPS / 2;
  go(half, 1);
  program_must("sed -i 's/\"steps\": %d/\"steps\": %d/' half/config.json", STEPS / 2, STEPS);
  for (int i = 0; i < 2; i++) go(prepare(i, whole[i]), 1);
  for (int i = 0; i < 2 * LAYOUTS; i++) length[i / LAYOUTS][i % LAYOUTS] = duration(i / LAYOUTS, sizes[i % LAYOUTS]);
  for (; done < kills; tries++) {
    int resumes = tries % 2, k = tries / 2 % LAYOUTS, ranks = sizes[k], next = others[tries % 3];
    job j = prepare(resumes, "many");
    j.kill_rank = (int)(ranks * drawn(1, tries));
    j.kill_after = length[resumes][k] * drawn(2, tries);
    int struck = forked_run(ranks, 0, train, &j), step = program_newest("many");
    if (!struck && step != STEPS) fail_msg("rank %d of %d: nobody was killed, at step %d", j.kill_rank, ranks, step);
    repair(j, next);
    const char *want = whole[resumes];
    if (program_run("diff -r %s/checkpoints many/checkpoints && cmp %s/metrics.jsonl many/metrics.jsonl && "
                    "test \"$(ls -A %s)\" = \"$(ls -A many)\"",
                    want, want, want))
      fail_msg("rank %d of %d killed after step %d, then %d: other bytes, or files: %s", j.kill_rank, ranks, step, next,
               program_output);
    done += struck;
    when[step <= (resumes ? STEPS / 2 : 0) ? 0 : step < STEPS ? 1 : 2] += struck;
  }
  print_message("%d kills of %d jobs, %d before a checkpoint of their own, %d after the last\n", done, tries, when[0],
                when[2]);
  assert_true(when[1] > 0); /* how many depends on what else the machine does */
}

TEST_MAIN(program_setup, program_directory_remove, killed_at_random_instants)
